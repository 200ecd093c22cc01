"""Modules and losses whose rows are coupled, and the data on which that shows."""

import torch
from torch import nn
from torch.nn import functional as F

from accelerando._engine.coupling import find_coupling
from tests._engine.plain import PlainModel


def model_of(module, criterion, dtype=torch.float32):
    torch.manual_seed(0)
    module = module() if isinstance(module, type) else module
    module = module.to(dtype)
    if isinstance(criterion, nn.Module):
        criterion = criterion.to(dtype)
    return PlainModel(module, criterion, torch.optim.SGD(module.parameters(), lr=0.1))


def look(module, criterion, X, y, dtype=torch.float32, *, sums=False, repeated=False):
    X = X.to(dtype) if X.is_floating_point() else X
    y = y.to(dtype) if y.is_floating_point() else y
    return find_coupling(model_of(module, criterion, dtype), X, y, sums=sums, repeated=repeated)


def numbers(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout2d(0.3),
            nn.Conv2d(16, 32, 3), nn.InstanceNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3), nn.GroupNorm(4, 32), nn.Flatten(), nn.Dropout(0.5),
            nn.Linear(32 * 9, 5),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


class Transformer(nn.Module):
    def __init__(self, batch_first=True):
        super().__init__()
        self.words = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(16, 5)

    def forward(self, x):
        return self.last(self.encoder(self.words(x)).mean(1))


LABELS = torch.arange(64) % 5
IMAGES, FEATURES = numbers(64, 3, 12, 12), numbers(64, 8)
WORDS = torch.arange(64 * 7).reshape(64, 7) % 50
SEQUENCES = numbers(64, 9, 6)
IGNORED = torch.where(torch.arange(64) % 3 == 0, -100, LABELS)
WEIGHT = torch.tensor([0.1, 1.0, 2.0, 5.0, 30.0])


def linear():
    return nn.Linear(8, 5)


def contrastive(p, y):
    p = F.normalize(p, dim=1)
    return F.cross_entropy(p @ p.T / 0.5 - 1e3 * torch.eye(len(p), dtype=p.dtype), y % 2)


def supervised_contrastive(p, y):
    p = F.normalize(p, dim=1)
    own = torch.eye(len(p), dtype=torch.bool)
    scores = (p @ p.T / 0.5).masked_fill(own, -1e9).log_softmax(1)
    same = (y[:, None] == y[None]) & ~own
    return -(scores * same).sum(1).div(same.sum(1).clamp(min=1)).mean()


def hardest_triplets(p, y):
    apart = torch.cdist(p, p + 1e-3)
    same = y[:, None] == y[None]
    far = apart.masked_fill(~same, 0).amax(1)
    near = apart.masked_fill(same, 1e9).amin(1)
    return F.relu(far - near + 1.0).mean()


def dice(p, y):
    p, t = p.sigmoid(), F.one_hot(y, 5)
    return 1 - 2 * (p * t).sum() / (p.sum() + t.sum())


def by_the_maximum(p, y):
    return ((p / p.detach().abs().max() - F.one_hot(y, 5)) ** 2).mean()


def over_valid(p, y):
    valid = y != -100
    return ((p[valid] - 1.0) ** 2).mean()


class MemoryBank(nn.Module):
    def __init__(self):
        super().__init__()
        self.bank = torch.zeros(5)

    def forward(self, p, y):
        loss = ((p - self.bank.to(p)) ** 2).mean()
        self.bank = 0.9 * self.bank + 0.1 * p.detach().mean(0)
        return loss


class Statistics(nn.Module):
    def __init__(self, share=1.0):
        super().__init__()
        self.last, self.share = nn.Linear(8, 5), share

    def forward(self, x):
        return self.last((x - self.share * x.mean(0)) / (1 + self.share * x.std(0)))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 5)

    def forward(self, x):
        return self.last(0.7 * x + 0.3 * x[torch.randperm(len(x))])


class RunningMean(nn.Module):
    """The loss is divided by the mean of the losses before, a plain number in a dictionary."""

    def __init__(self):
        super().__init__()
        self.seen = {"losses": [1.0]}

    def forward(self, p, y):
        loss = F.cross_entropy(p, y) / (sum(self.seen["losses"]) / len(self.seen["losses"]))
        self.seen["losses"].append(float(loss.detach()))
        return loss


class Pairs(nn.Module):
    """Two neighboring rows belong together."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 5)

    def forward(self, x):
        pairs = x.view(-1, 2, 8)
        return self.last((pairs + pairs.flip(1)).reshape(-1, 8))


class HalvedNorm(nn.BatchNorm1d):
    def forward(self, x):
        return 0.5 * super().forward(x)


def hooked(register):
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 5))
    register(module)
    return module


def center(layer, args, output):
    return output - output.mean(0)


def own_forward(module):
    module[0].forward = lambda x: x - x.mean(0)


def look_at_gradient(module):
    module[0].weight.register_post_accumulate_grad_hook(lambda p: None)


class CenteredMSE(nn.MSELoss):
    def forward(self, p, y):
        return super().forward(p - p.mean(0), y)


def flooded(p, y):
    return (F.cross_entropy(p, y) - 0.1).abs() + 0.1


def flooded_high(p, y):
    return (F.cross_entropy(p, y) - 0.4).abs() + 0.4


def capped(p, y):
    return F.cross_entropy(p, y).clamp(max=3.0)


def doubled_when_small(p, y):
    loss = F.cross_entropy(p, y)
    return loss * 2 if loss.item() < 0.2 else loss


def weighted_by_class(p, y):
    return F.cross_entropy(p, y, weight=torch.tensor([0.3, 1.7, 1.0, 1.0, 1.0]).to(p))


def valid_targets(p, y):
    return F.cross_entropy(p, y, ignore_index=-100)


TURNS = torch.arange(64) % 2  # both parts have the same share of each class
SKIPPED = torch.where(torch.arange(64) % 4 == 0, -100, TURNS)
COUPLED = {
    "running mean": (linear, RunningMean(), FEATURES, LABELS, "buffers"),
    "pairs of rows": (Pairs, nn.CrossEntropyLoss(), FEATURES, LABELS, "module"),
    "BatchNorm with its own forward": (
        lambda: nn.Sequential(HalvedNorm(8), nn.Linear(8, 5)),
        nn.CrossEntropyLoss(), FEATURES, LABELS, "buffers",
    ),
    "a hook": (
        lambda: hooked(lambda m: m[0].register_forward_hook(center)),
        nn.CrossEntropyLoss(), FEATURES, LABELS, "module",
    ),
    "another forward": (
        lambda: hooked(own_forward), nn.CrossEntropyLoss(), FEATURES, LABELS, "module",
    ),
    "clamped gradients": (
        lambda: hooked(lambda m: m[1].weight.register_hook(lambda g: g.clamp(-1e-2, 1e-2))),
        nn.CrossEntropyLoss(), FEATURES, LABELS, "loss",
    ),
    "accumulated gradients": (
        lambda: hooked(look_at_gradient), nn.CrossEntropyLoss(), FEATURES, LABELS, "hook",
    ),
    "a subclass of MSELoss": (linear, CenteredMSE(), FEATURES, numbers(64, 5), "loss"),
    "flooding": (linear, flooded, FEATURES, LABELS, "loss"),
    "flooding near the first loss": (linear, flooded_high, FEATURES, LABELS, "loss"),
    "a cap": (linear, capped, FEATURES, LABELS, "loss"),
    "a branch": (linear, doubled_when_small, FEATURES, LABELS, "loss"),
    "class weights, classes in turn": (linear, weighted_by_class, FEATURES, TURNS, "loss"),
    "ignored targets in turn": (linear, valid_targets, FEATURES, SKIPPED, "loss"),
    "contrastive": (linear, contrastive, FEATURES, LABELS, "loss"),
    "supervised contrastive": (linear, supervised_contrastive, FEATURES, LABELS, "loss"),
    "triplets": (linear, hardest_triplets, FEATURES, LABELS, "loss"),
    "Dice": (linear, dice, FEATURES, LABELS, "loss"),
    "maximum": (linear, by_the_maximum, FEATURES, LABELS, "loss"),
    "mean over valid rows": (linear, over_valid, FEATURES, IGNORED, "loss"),
    "memory bank": (linear, MemoryBank(), FEATURES, LABELS, "buffers"),
    "statistics": (Statistics, nn.CrossEntropyLoss(), FEATURES, LABELS, "module"),
    "weak statistics": (
        lambda: Statistics(1e-4), nn.CrossEntropyLoss(), FEATURES, LABELS, "module",
    ),
    "mixup": (Mixed, nn.CrossEntropyLoss(), FEATURES, LABELS, "module"),
    "attention over the batch": (
        lambda: Transformer(batch_first=False), nn.CrossEntropyLoss(), WORDS, LABELS, "module",
    ),
    "instance statistics": (
        lambda: nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True), nn.Flatten(),
                              nn.Linear(432, 5)),
        nn.CrossEntropyLoss(), IMAGES, LABELS, "buffers",
    ),
}  # fmt: skip
