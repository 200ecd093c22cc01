"""Classify texts of different lengths: each batch is padded to its longest text.

Run it with ``python examples/padded_text.py``.
"""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from accelerando import NeuralNetClassifier

GOOD = ["what a fine day", "fine", "a good film and a good cast", "we had a very good time"]
BAD = ["a bad day", "dull", "the film was dull and the cast was bad", "we had a bad time"]
WORDS = {word: n for n, word in enumerate(sorted({w for t in GOOD + BAD for w in t.split()}), 1)}


def numbers(text: str) -> torch.Tensor:
    """Return the numbers of the words; 0 is kept for padding."""
    return torch.tensor([WORDS.get(word, 0) for word in text.split()])


class Texts(Dataset):
    """Texts as numbers of words, with their labels."""

    def __init__(self, texts: list[str], labels: list[int]) -> None:
        self.texts, self.labels = texts, labels

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return numbers(self.texts[row]), self.labels[row]


def padded(rows: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Join the rows of a batch; short texts end with zeros."""
    texts, labels = zip(*rows, strict=True)
    return pad_sequence(texts, batch_first=True), torch.tensor(labels)


class MeanOfWords(nn.Module):
    """The mean of the word vectors, without the padding, and a linear layer."""

    def __init__(self, n_words: int) -> None:
        super().__init__()
        self.vectors = nn.EmbeddingBag(n_words, 8, mode="mean", padding_idx=0)
        self.output = nn.Linear(8, 2)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.output(self.vectors(text))


net = NeuralNetClassifier(
    MeanOfWords,
    module__n_words=len(WORDS) + 1,
    optimizer=torch.optim.Adam,
    lr=0.03,
    max_epochs=30,
    batch_size=4,
    train_split=None,
    iterator_train__collate_fn=padded,
    iterator_valid__collate_fn=padded,
    random_state=0,
    verbose=0,
)
net.fit(Texts(GOOD + BAD, [1] * len(GOOD) + [0] * len(BAD)), None)
new = ["a very fine film", "a very dull film"]
for text, good in zip(new, net.predict(Texts(new, [0, 0])), strict=True):
    print(f"{text!r}: {'good' if good else 'bad'}")
