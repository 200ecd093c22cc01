"""Search the hyperparameters of a network with Hyperband, in this process.

Run it with ``python examples/search.py [picture.png]``.
"""

# %% A net, and a list or a distribution for each hyperparameter
import sys

from scipy.stats import loguniform
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from accelerando import NeuralNetClassifier, plot
from accelerando.batch_size import GeoDamp
from accelerando.search import HyperbandSearchCV

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X / 16, y, stratify=y, random_state=0)
net = NeuralNetClassifier(
    lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
    optimizer__momentum=0.9,
    batch_size=GeoDamp,  # a class: its settings are hyperparameters, too
    max_epochs=1,  # of each call of partial_fit
    train_split=None,
    random_state=0,
    verbose=0,
)
space = {
    "lr": loguniform(1e-4, 1),
    "batch_size__initial": [16, 32, 64],
    "batch_size__delay": [1, 2, 4],
}

# %% The work is known before anything is trained
search = HyperbandSearchCV(net, space, max_iter=9, random_state=0)
work = search.metadata
print(f"{work['n_models']} models, {work['partial_fit_calls']} calls of partial_fit")

# %% The best model is trained on all rows and predicts
search.fit(X_train, y_train)
print("best:", {name: f"{value:.3g}" for name, value in search.best_params_.items()})
print(f"accuracy on the test set: {search.score(X_test, y_test):.3f}")
figure = plot.search(search)
if len(sys.argv) > 1:
    figure.savefig(sys.argv[1])
