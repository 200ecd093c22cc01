"""Imports point down, libraries stay in their rooms, private names in their adapters."""

import ast
import functools
import importlib.util
import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "docs" / "architecture.py"
spec = importlib.util.spec_from_file_location("architecture", SCRIPT)
graph = importlib.util.module_from_spec(spec)
spec.loader.exec_module(graph)

MODULES = graph.modules()


@functools.cache
def nodes_of(path):
    """The nodes of a module; all of them together take seconds to parse."""
    return list(ast.walk(ast.parse(path.read_text())))


@functools.cache
def third_party(path):
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
    return found


def importers_of(*libraries):
    return {
        graph.room_of(module) if graph.room_of(module) != "base" else module
        for module, path in MODULES.items()
        if third_party(path) & set(libraries)
    }


# Methods that warn and are removed in the next minor release: Plan.plot, Comparison.plot.
DEPRECATED = {("cost", "plot")}


def test_every_import_points_down():
    upward = [
        f"{source} -> {target}"
        for source, target in graph.edges()
        if graph.ROOMS[target] <= graph.ROOMS[source] and (source, target) not in DEPRECATED
    ]
    assert not upward


def test_imports_inside_functions_count(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("def f():\n    from accelerando.search import x\n    import accelerando.plot\n")
    assert graph.imports_of(file) == {"search", "plot"}


def test_only_the_estimators_import_skorch():
    assert importers_of("skorch") == {"estimators"}


def test_the_engine_imports_neither_dask_nor_scikit_learn():
    assert "_engine" not in importers_of("dask", "distributed", "sklearn", "skorch")


def test_dask_stays_in_its_rooms():
    rooms = {"_cluster", "_dask", "search", "crowd", "doctor", "testing"}
    assert importers_of("dask", "distributed") <= rooms


ROOMS_WITH_TESTS = ("_engine.", "_cluster.")


def test_every_module_of_the_engine_and_the_cluster_is_imported_by_its_tests():
    imported = set()
    for file in Path(__file__).parent.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                imported |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    modules = [m for m, path in MODULES.items() if path.name != "__init__.py"]
    mine = [m for m in modules if m.startswith(ROOMS_WITH_TESTS)]
    assert len(mine) > 50
    assert [m for m in mine if f"accelerando.{m}" not in imported] == []


# What has nothing to test, and what only its command shows, which tests/test_cli.py does.
WITHOUT_TESTS = {"_version", "__main__"}


def test_tests_mirror_the_code_one_to_one():
    tests = Path(__file__).parent
    missing = []
    for module, path in MODULES.items():
        *rooms, name = module.split(".")
        mirror = tests.joinpath(*rooms, f"test_{name.lstrip('_')}.py")
        if path.name != "__init__.py" and module not in WITHOUT_TESTS and not mirror.exists():
            missing.append(f"{module} has no {mirror.relative_to(tests)}")
    assert not missing, "\n".join(missing)


PRIVATE = re.compile(r"\b(torch|dist|nn|skorch|sklearn|distributed|dask)(\.\w+)*\._(?!_)\w+")
ADAPTERS = {"_engine._torch", "_dask", "_sklearn", "estimators._skorch"}


@pytest.mark.parametrize("module", [name for name in MODULES if name not in ADAPTERS])
def test_private_names_of_libraries_live_in_adapters(module):
    found = []
    for node in nodes_of(MODULES[module]):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if PRIVATE.match(text):
                found.append(text)
        elif isinstance(node, ast.ImportFrom) and node.module:
            library = node.module.split(".")[0]
            if library in ("torch", "skorch", "sklearn", "distributed", "dask"):
                private = [a.name for a in node.names if a.name.startswith("_")]
                private += [part for part in node.module.split(".") if part.startswith("_")]
                found += [f"{node.module}: {name}" for name in private]
    assert not found


def test_the_drawing_in_the_documentation_is_the_present_one():
    assert graph.DRAWING.read_text() == graph.drawing(), "run `python docs/architecture.py`"


PAGE = (SCRIPT.parent / "architecture.md").read_text()


def test_the_page_names_files_and_classes_that_exist():
    files = [str(path.relative_to(graph.SOURCE.parents[1])) for path in MODULES.values()]
    files += [str(path.relative_to(graph.ROOT)) for path in graph.ROOT.glob("[tbd]*/**/*.py")]
    named = {name for name in re.findall(r"[\w/]+\.py", PAGE) if not name.endswith("/x.py")}
    named -= {name for name in named if name.endswith("/_x.py")}  # where a new piece goes
    assert len(named) > 40
    assert [name for name in named if not any(f"/{f}".endswith(f"/{name}") for f in files)] == []
    code = "".join(path.read_text() for path in MODULES.values())
    classes = set(re.findall(r"`([A-Z][a-z]\w+)`", PAGE))
    assert len(classes) > 40
    assert [name for name in classes if not re.search(rf"\b(class|def) {name}\b", code)] == []


def test_the_walks_of_the_page_are_where_the_page_says():
    walks = re.findall(r"^(?:(?:driver|rank) +)?(\S.*?)  +(\S+\.py)(?:  |$)", PAGE, re.MULTILINE)
    assert len(walks) > 15
    for calls, file in walks:
        if calls.startswith("POST ") or calls == "worker turn":  # no names of the code
            continue
        code = (graph.SOURCE / file).read_text()
        names = [re.sub(r"\(.*", "", call).split(".")[-1] for call in calls.split(" → ")]
        assert any(re.search(rf"\b{name}\b", code) for name in names), (calls, file)


def test_the_base_is_listed_as_it_is():
    (row,) = re.findall(r"^\| `base` \|.*$", PAGE, re.MULTILINE)
    base = {m.split(".")[0] for m in MODULES if graph.room_of(m) == "base" and m != "_version"}
    assert set(re.findall(r"`(\w+)`", row)) - {"base"} == base


def test_every_message_is_on_the_page():
    defined = {node.name for node in nodes_of(MODULES["_cluster.messages"]) if is_class(node)}
    table = PAGE[PAGE.index("### Messages") : PAGE.index("### The driver's phases")]
    named = set(re.findall(r"`([A-Z]\w+)`", table)) - {"TCPStore"}
    assert defined - named == {"TaskEnd"}  # a part of Surveyed
    assert named <= defined


def is_class(node):
    return isinstance(node, ast.ClassDef)


def test_the_page_says_which_states_are_read():
    from accelerando._engine.checkpoint import READERS, VERSION

    *first, last = READERS
    said = (
        f"Version {VERSION} is written; versions {', '.join(map(str, first))} and {last} are read"
    )
    assert said in " ".join(PAGE.split())
