"""Build wheel and sdist, check them, install each into a clean environment and try it.

``make dist`` runs it. The environments have the packages of constraints.txt: the wheel is installed
with the extra ``crowd``, which needs no PyTorch, and the sdist with ``train``.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"

# What works after each installation, and what has to say which extra is missing.
SMOKE = {
    "crowd": """
import subprocess, sys
import numpy as np
from accelerando.crowd import ARR, FromEmbedding, OrdinalEmbedding, simulate
points = np.arange(8.0)[:, None]
asked = simulate(8, ARR(), FromEmbedding(points), n_answers=200, random_state=0)
model = OrdinalEmbedding(n_components=2, n_items=8, random_state=0).fit(asked.triplets)
assert model.score(asked.triplets) > 0.65
from accelerando.crowd.web import create_app
for package in ("torch", "skorch", "dask", "pandas"):
    found = subprocess.run([sys.executable, "-c", f"import {package}"], capture_output=True)
    assert found.returncode, package
try:
    from accelerando import NeuralNet
except ImportError as error:
    assert "accelerando[train]" in str(error), error
else:
    raise AssertionError("NeuralNet was imported without PyTorch")
""",
    "train": """
from sklearn.datasets import load_digits
from torch import nn
from accelerando import NeuralNetClassifier
from accelerando.batch_size import GeoDamp
from accelerando.search import HyperbandSearchCV
X, y = load_digits(return_X_y=True)
net = NeuralNetClassifier(nn.Linear, module__in_features=64, module__out_features=10, lr=0.01,
                          batch_size=GeoDamp(initial=16), max_epochs=3, random_state=0, verbose=0)
assert net.fit(X, y).score(X, y) > 0.8
search = HyperbandSearchCV(net.set_params(max_epochs=1, train_split=None),
                           {"lr": [0.001, 0.01, 0.1]}, max_iter=3, random_state=0).fit(X, y)
assert search.best_score_ > 0.5
try:
    from accelerando.crowd.web import create_app
except ImportError as error:
    assert "accelerando[crowd]" in str(error), error
else:
    raise AssertionError("the web service was imported without its packages")
""",
}


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command; end with its exit code if it fails."""
    print("$", *command, flush=True)
    code = subprocess.run([str(word) for word in command], cwd=cwd, check=False).returncode
    if code:
        sys.exit(code)


def build() -> tuple[Path, Path]:
    """Build both files and return their paths."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return wheel, sdist


def problems(wheel: Path, sdist: Path) -> list[str]:
    """Return what is missing from the files, or does not belong there."""
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    package = ROOT / "src" / "accelerando"
    files = [
        path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    found = [
        f"{wheel.name} lacks {name}"
        for path in files
        if (name := f"accelerando/{path.relative_to(package).as_posix()}") not in in_wheel
    ]
    found += [
        f"{wheel.name} has {name}" for name in in_wheel if name.startswith(("tests/", "docs/"))
    ]
    found += [
        f"{sdist.name} lacks {name}"
        for name in ("README.md", "LICENSE", "CITATION.cff", "SECURITY.md", "tests/conftest.py")
        if name not in in_sdist
    ]
    found += [
        f"{sdist.name} has {name}" for name in in_sdist if name.startswith((".venv", "dist/"))
    ]
    return found


def try_out(file: Path, extra: str) -> None:
    """Install a file with an extra into a clean environment and run the smoke test."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "Scripts" if sys.platform == "win32" else "bin", "python")
        pip = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
        run(*pip, "-c", ROOT / "constraints.txt", f"{file}[{extra}]")
        run(python, "-m", "pip", "check", cwd=Path(folder))
        run(python, "-m", "accelerando", "--version", cwd=Path(folder))
        print(f"smoke test of {file.name}[{extra}]", flush=True)
        code = subprocess.run([python, "-c", SMOKE[extra]], cwd=folder, check=False).returncode
        if code:
            sys.exit(f"The smoke test of {file.name}[{extra}] failed.")
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        print(f"{extra}: {size / 1e6:.0f} MB installed, with pip", flush=True)


def main() -> None:
    """Build, check, install, try."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--extra", choices=SMOKE, help="try one installation only")
    arguments = parser.parse_args()
    wheel, sdist = build()
    if found := problems(wheel, sdist):
        sys.exit("\n".join(found))
    for file, extra in ((wheel, "crowd"), (sdist, "train")):
        if arguments.extra in (None, extra):
            try_out(file, extra)
    print("wheel and sdist are complete, install, and work")


if __name__ == "__main__":
    main()
