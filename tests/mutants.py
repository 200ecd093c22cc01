"""Plant bugs, one at a time, and count those that a test catches; ``make mutants``.

A mutant is a copy of the source with one small change in a module that decides or keeps something:
another comparison, a dropped call, a constant that is off by one. The tests that import the module
run against it, the module's own test file first. A mutant that no test catches is a survivor: a
missing test, or a change that makes no difference. ``docs/testing.md`` has a verdict for each.

The sample is drawn with a seed, so that the same command plants the same bugs. ``--only`` limits
the modules by the beginning of their names, ``--resume`` continues the table of an earlier run.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "accelerando"
RESULT = ROOT / "benchmarks" / "results" / "mutants.json"

# Modules that decide or keep something, by package of the table.
TARGETS = {
    "engine": ["_engine/*.py", "_engine/data/*.py", "_files.py", "_folder.py"],
    "driver": [
        "_cluster/driver/machine.py",
        "_cluster/driver/sizing.py",
        "_cluster/driver/pool.py",
    ],
    "communicators": ["_engine/comm/*.py", "sync/*.py"],
    "codecs": ["compress/*.py"],
    "policies and monitors": ["policies/*.py", "monitor/*.py"],
    "search": ["search/*.py"],
    "crowd: store": ["crowd/store/*.py"],
    "crowd: decisions": [
        "crowd/_posterior.py",
        "crowd/_assignment.py",
        "crowd/_adaptive.py",
        "crowd/_passive.py",
        "crowd/_sampler.py",
        "crowd/_score.py",
        "crowd/_guard.py",
    ],
    "crowd: authorization": [
        "crowd/web/accounts.py",
        "crowd/web/auth.py",
        "crowd/web/limits.py",
        "crowd/web/roles.py",
        "crowd/web/totp.py",
        "crowd/web/signed.py",
        "crowd/web/group_commit.py",
    ],
}
# Tests of a package beside those of the module itself.
TABLES = {
    "communicators": ["tests/contracts/test_sync.py"],
    "codecs": ["tests/contracts/test_compress.py"],
    "policies and monitors": [
        "tests/contracts/test_policies.py",
        "tests/contracts/test_monitors.py",
    ],
    "search": ["tests/contracts/test_search_contract.py"],
    "crowd: store": ["tests/contracts/test_faults_crowd.py"],
    "crowd: decisions": ["tests/contracts/test_crowd_samplers.py"],
    "crowd: authorization": ["tests/crowd/web/test_attacks.py"],
    "engine": ["tests/contracts/test_faults_training.py"],
}

_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "+"),
}
_LEFT_OUT = {"src", ".git", ".venv", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil"}
# Statements whose loss changes nothing that a program computes or keeps.
_QUIET = {"log", "logging", "warnings", "_warn", "warn", "print"}


class Mutant(NamedTuple):
    """One planted bug: a piece of a source line that is replaced."""

    package: str
    module: str  # path below the source
    line: int
    start: int  # offsets in the file, in bytes
    stop: int
    new: str
    old: str
    text: str  # the line

    @property
    def name(self) -> str:
        """What is shown and compared, without line numbers, which change often."""
        change = f"{self.old} -> {self.new}" if self.old != self.text else f"-> {self.new}"
        return f"{self.module}: `{self.text}` {change}"


def mutants_of(package: str, path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file, in the order of the file."""
    source = path.read_bytes()
    lines = source.splitlines(keepends=True)
    starts = [0]
    for one in lines:
        starts.append(starts[-1] + len(one))
    module = path.relative_to(SOURCE).as_posix()

    def place(node: ast.AST) -> tuple[int, int]:
        first, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
        return (
            starts[first - 1] + node.col_offset,  # type: ignore[attr-defined]
            starts[last - 1] + node.end_col_offset,  # type: ignore[attr-defined]
        )

    def made(start: int, stop: int, new: str) -> Mutant:
        line = source.count(b"\n", 0, start) + 1
        old, text = source[start:stop].decode(), lines[line - 1].decode().strip()
        return Mutant(package, module, line, start, stop, new, old, text)

    def between(left: ast.AST, right: ast.AST) -> tuple[int, int]:
        start, stop = place(left)[1], place(right)[0]
        text = source[start:stop]
        # Closing brackets belong to the left side, opening ones to the right.
        skip = len(text) - len(text.lstrip(b" )\n"))
        tail = len(text) - len(text.rstrip(b" (\n"))
        return start + skip, stop - tail

    for node in _nodes(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            start, stop = between(node.left, node.comparators[0])
            yield made(start, stop, _COMPARE[type(node.ops[0])])
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            old, new = _ARITHMETIC[type(node.op)]
            start, stop = between(node.left, node.right)
            if source[start:stop].decode() == old:
                yield made(start, stop, new)
        elif isinstance(node, ast.BoolOp):
            start, stop = between(node.values[0], node.values[1])
            yield made(start, stop, "or" if isinstance(node.op, ast.And) else "and")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            start, stop = place(node)
            yield made(start, start + 4, "")
        elif isinstance(node, ast.If | ast.IfExp):
            start, stop = place(node.test)
            yield made(start, stop, f"(not ({source[start:stop].decode()}))")
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            start, stop = place(node)
            new = str(not node.value) if isinstance(node.value, bool) else repr(node.value + 1)
            yield made(start, stop, new)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in _FUNCTIONS:
                start, stop = place(node.func)
                yield made(start, stop, _FUNCTIONS[node.func.id])
        elif _is_effect(node):
            yield made(*place(node), "pass")


def _is_effect(node: ast.AST) -> bool:
    """Return True for a call whose result is not used, and for what an object gets to keep."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Attribute)
    return isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute)


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes of a file that run when its functions are called."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                yield from _inside(statement)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    quiet = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Raise, ast.Assert, ast.JoinedStr)
    if isinstance(node, quiet):
        return
    if isinstance(node, ast.Expr) and (
        isinstance(node.value, ast.Constant)
        or _QUIET & {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    ):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _inside(child)


def sample(count: int, seed: int, only: Sequence[str] = ()) -> list[Mutant]:
    """Draw mutants, as many from each package as its share of all, and at least five."""
    found: dict[str, list[Mutant]] = {}
    for package, patterns in TARGETS.items():
        paths = sorted({path for pattern in patterns for path in SOURCE.glob(pattern)})
        some = [one for path in paths for one in mutants_of(package, path)]
        if only:
            some = [one for one in some if one.module.startswith(tuple(only))]
        if some:
            found[package] = some
    total = sum(map(len, found.values()))
    generator = random.Random(seed)
    drawn = []
    for some in found.values():
        share = min(len(some), max(5, round(count * len(some) / max(1, total))))
        drawn += generator.sample(some, share)
    return drawn


def tests_of(mutant: Mutant, imports: dict[str, set[str]]) -> list[str]:
    """Return the test files that import a module, its own first."""
    path = Path(mutant.module)
    own = Path("tests") / path.parent / f"test_{path.stem.lstrip('_')}.py"
    dotted = "accelerando." + ".".join(path.with_suffix("").parts)
    others = sorted(file for file, names in imports.items() if dotted in names)
    files = [own.as_posix(), *others, *TABLES.get(mutant.package, [])]
    return [file for file in dict.fromkeys(files) if (ROOT / file).exists()]


def imports_of_tests() -> dict[str, set[str]]:
    """Return the modules that each test file imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            file = path.relative_to(ROOT).as_posix()
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found[file].add(node.module)
                found[file].update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                found[file].update(alias.name for alias in node.names)
    return found


def judge(mutant: Mutant, tests: Sequence[str], seconds: float) -> dict[str, Any]:
    """Run the tests against a copy of the source with the bug in it."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        copy = Path(name)
        shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for entry in ROOT.iterdir():  # what tests read beside the source
            if entry.name not in _LEFT_OUT:
                (copy / entry.name).symlink_to(entry)
        path = copy / "src" / "accelerando" / mutant.module
        source = path.read_bytes()
        path.write_bytes(source[: mutant.start] + mutant.new.encode() + source[mutant.stop :])
        started = time.monotonic()
        verdict, by = "survived", ""
        for file in tests:
            left = seconds - (time.monotonic() - started)
            if left <= 0:
                break
            outcome = _run(copy, file, left)
            if outcome:
                verdict, by = outcome, file
                break
        return {
            **mutant._asdict(),
            "name": mutant.name,
            "verdict": verdict,
            "by": by,
            "seconds": round(time.monotonic() - started, 1),
        }


def _run(copy: Path, file: str, seconds: float) -> str:
    """Return "killed" if a test of a file fails, "timeout" if it hangs, else nothing."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "no:rerunfailures", "--timeout=120", "--no-header", "--tb=no", file]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    return "" if done.returncode in (0, 5) else "killed"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the score of each package as text."""
    lines = [f"{'package':24} {'mutants':>8} {'killed':>8} {'score':>7}"]
    packages: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        packages[row["package"]].append(row["verdict"] != "survived")
    packages["all"] = [killed for some in packages.values() for killed in some]
    for package, killed in packages.items():
        score = 100 * sum(killed) / max(1, len(killed))
        lines.append(f"{package:24} {len(killed):8} {sum(killed):8} {score:6.0f}%")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the bugs, print survivors and scores, and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=300, help="mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default: %(default)s)")
    parser.add_argument("--only", nargs="*", default=[], help="beginnings of module paths")
    parser.add_argument("--jobs", type=int, default=2, help="at a time (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=240.0, help="limit for each mutant")
    parser.add_argument("--output", type=Path, default=RESULT, help="JSON file of the result")
    parser.add_argument("--resume", action="store_true", help="keep the verdicts of the output")
    parser.add_argument("--limit", type=float, default=None, help="minutes; the rest stays open")
    options = parser.parse_args(arguments)
    imports = imports_of_tests()
    rows: list[dict[str, Any]] = []
    if options.resume and options.output.exists():
        rows = json.loads(options.output.read_text())["rows"]
    known = {row["name"] for row in rows}
    drawn = sample(options.count, options.seed, options.only)
    todo = [one for one in drawn if one.name not in known]
    random.Random(options.seed).shuffle(todo)
    began = time.monotonic()

    def work(mutant: Mutant) -> None:
        if options.limit is not None and time.monotonic() - began > 60 * options.limit:
            return
        row = judge(mutant, tests_of(mutant, imports), options.seconds)
        rows.append(row)
        mark = {"killed": ".", "timeout": "t"}.get(row["verdict"], "S")
        print(f"{mark} {row['seconds']:6.1f} s  {mutant.module}:{mutant.line}  {row['name']}")
        content = {"command": "make mutants", "seed": options.seed, "rows": rows}
        part = options.output.with_suffix(".part")
        part.write_text(json.dumps(content, indent=1))
        part.replace(options.output)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, todo))
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
