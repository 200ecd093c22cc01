"""A table with numbers and categories: a Pipeline whose last step is a network.

Run it with ``python examples/tables.py``.
"""

# %% A table with a column of numbers that have gaps and a column of words
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

from accelerando import NeuralNetClassifier
from accelerando.batch_size import GeoDamp

rng = np.random.default_rng(0)
table = pd.DataFrame(
    {
        "age": np.where(rng.random(600) < 0.1, np.nan, rng.integers(18, 80, 600)),
        "income": rng.lognormal(10, 0.5, 600),
        "city": rng.choice(["Lima", "Oslo", "Pune"], 600),
    }
)
likes = table["age"].fillna(45) / 40 + (table["city"] == "Oslo") + rng.normal(0, 0.3, 600)
answer = np.where(likes > 1.4, "yes", "no")
print(table.head(3).round(1).to_string(index=False))

# %% Numbers are imputed and scaled, words become columns; labels stay strings
columns = make_column_transformer(
    (make_pipeline(SimpleImputer(), StandardScaler()), ["age", "income"]),
    (OneHotEncoder(sparse_output=False), ["city"]),
)
net = NeuralNetClassifier(
    lambda: nn.Sequential(nn.LazyLinear(32), nn.ReLU(), nn.Linear(32, 2)),
    lr=0.1,
    max_epochs=15,
    batch_size=GeoDamp(initial=16, delay=5, factor=2),
    train_split=None,
    random_state=0,
    verbose=0,
)
model = make_pipeline(columns, net)

# %% Cross-validation and prediction work as with every scikit-learn estimator
print("accuracy, three folds:", cross_val_score(model, table, answer, cv=3).round(2))
print("predictions:", model.fit(table, answer).predict(table.head(3)))
