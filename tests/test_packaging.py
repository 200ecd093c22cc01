"""What surrounds the code: metadata, citation, container, recipe, and the script that builds."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from accelerando import cli
from accelerando._version import __version__

ROOT = Path(__file__).parents[1]
PACKAGING = ROOT / "packaging"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "license", "version"} <= set(cited)
    assert cited["version"] == __version__
    assert cited["license"] == PROJECT["license"]
    assert cited["title"] == PROJECT["name"]
    assert [author["name"] for author in cited["authors"]] == [
        a["name"] for a in PROJECT["authors"]
    ]
    assert cited["authors"][0]["name"] in (ROOT / "LICENSE").read_text()


def test_the_classifiers_name_the_oldest_python():
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {oldest}" in PROJECT["classifiers"]


def test_each_audience_has_one_line_in_the_readme():
    lines = re.findall(r"^\$ pip install '\.\[(.+?)\]'", (ROOT / "README.md").read_text(), re.M)
    assert lines == ["train", "search", "crowd", "all"]
    assert set(lines) <= set(PROJECT["optional-dependencies"])


def test_the_dockerfile_has_no_finding():
    hadolint = shutil.which("hadolint", path=Path(sys.executable).parent)
    done = subprocess.run(
        [hadolint, "--no-color", PACKAGING / "Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_dockerfile_serves_as_somebody_without_rights():
    text = (PACKAGING / "Dockerfile").read_text()
    last = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER [1-9]\d*$", last, re.MULTILINE)
    assert last.index("USER ") < last.index("ENTRYPOINT")
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in source.split())


def words_after(text, instruction):
    return yaml.safe_load(re.search(rf"^ *{instruction} (\[.+\])$", text, re.MULTILINE)[1])


def test_the_command_of_the_container_is_one_of_ours():
    text = (PACKAGING / "Dockerfile").read_text()
    command = words_after(text, "ENTRYPOINT") + words_after(text, "CMD")[:0]
    served = re.findall(r"^CMD (\[.+\])$", text, re.MULTILINE)[-1]
    program, *arguments = command + yaml.safe_load(served)
    assert program in PROJECT["scripts"]
    parsed = cli.build_parser().parse_args(arguments)
    assert parsed.host == "0.0.0.0"
    assert f"EXPOSE {parsed.port}" in text


COMPOSE = yaml.safe_load((PACKAGING / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
# The keys of the Compose specification that we use, and the type of their values.
KEYS = {
    "build": dict,
    "image": str,
    "restart": str,
    "command": list,
    "environment": dict,
    "depends_on": (list, dict),
    "networks": list,
    "read_only": bool,
    "tmpfs": list,
    "volumes": list,
    "cap_drop": list,
    "security_opt": list,
    "healthcheck": dict,
    "ports": list,
}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_of_compose_is_complete(name):
    service = SERVICES[name]
    assert set(service) <= set(KEYS)
    assert all(isinstance(value, KEYS[key]) for key, value in service.items())
    assert ("build" in service) != ("image" in service)
    assert re.search(r":\d", service.get("image", ":1"))  # a version, and not the newest one
    assert set(service.get("depends_on", ())) <= set(SERVICES)
    assert set(service["networks"]) <= set(COMPOSE["networks"])
    named = {volume.partition(":")[0] for volume in service.get("volumes", ())}
    assert named <= set(COMPOSE["volumes"])


def test_only_the_proxy_is_reachable_and_no_password_is_on_file():
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["proxy"]
    text = (PACKAGING / "compose.yaml").read_text()
    for line in re.findall(r"^ *POSTGRES_PASSWORD: (.*)$", text, re.MULTILINE):
        assert line.startswith("${CROWD_DB_PASSWORD:?")
    assert re.search(r"postgresql://crowd:\$\{CROWD_DB_PASSWORD:\?", text)


def test_compose_builds_the_dockerfile_and_starts_our_command():
    build = SERVICES["crowd"]["build"]
    context = (PACKAGING / build["context"]).resolve()
    assert (context / build["dockerfile"]) == PACKAGING / "Dockerfile"
    parsed = cli.build_parser().parse_args(["crowd", *SERVICES["crowd"]["command"]])
    assert parsed.proxy == COMPOSE["networks"]["inside"]["ipam"]["config"][0]["subnet"]
    target = SERVICES["proxy"]["command"][-1]
    assert target == f"crowd:{parsed.port}"
    assert parsed.host == "0.0.0.0"  # inside its network; the proxy is outside


RECIPE = yaml.safe_load((PACKAGING / "conda" / "recipe.yaml").read_text())
OUTPUTS = {output["package"]["name"]: output for output in RECIPE["outputs"]}
# conda-forge's names, where they differ.
CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base", "dask": "dask-core"}


def required(lines):
    """The requirements of pyproject.toml as conda's: name and range."""
    found = set()
    for line in lines:
        name, span = re.match(r"([\w.-]+)(?:\[.*?\])?([^;]*)", line).groups()
        found.add((CONDA.get(name, name), span.strip()))
    return found


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        ("accelerando", PROJECT["dependencies"]),
        ("accelerando-train", PROJECT["optional-dependencies"]["train"]),
        ("accelerando-crowd", PROJECT["optional-dependencies"]["crowd"]),
    ],
)
def test_the_recipe_requires_what_pyproject_requires(output, lines):
    run = [line for line in OUTPUTS[output]["requirements"]["run"] if "${{" not in line]
    assert {tuple(line.split(" ", 1)) for line in run} == required(lines)
    assert OUTPUTS[output]["tests"]


def test_the_recipe_is_of_this_version():
    assert RECIPE["schema_version"] == 1
    assert RECIPE["context"]["version"] == __version__
    assert RECIPE["context"]["python_min"] == PROJECT["requires-python"].removeprefix(">=")
    assert RECIPE["about"]["license"] == PROJECT["license"]
    assert "accelerando = " + PROJECT["scripts"]["accelerando"] in str(OUTPUTS["accelerando"])


spec = importlib.util.spec_from_file_location("dist", PACKAGING / "dist.py")
dist = importlib.util.module_from_spec(spec)
spec.loader.exec_module(dist)


def test_an_incomplete_wheel_is_refused(tmp_path, monkeypatch):
    package = tmp_path / "src" / "accelerando"
    (package / "web").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "web" / "page.html").touch()
    monkeypatch.setattr(dist, "ROOT", tmp_path)
    wheel, sdist = tmp_path / "a.whl", tmp_path / "a.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("accelerando/__init__.py", "")
        archive.writestr("tests/test_a.py", "")
    with tarfile.open(sdist, "w:gz") as archive:
        archive.add(package, "accelerando-1/README.md")
    assert dist.problems(wheel, sdist)[:3] == [
        "a.whl lacks accelerando/web/page.html",
        "a.whl has tests/test_a.py",
        "a.tar.gz lacks LICENSE",
    ]


def test_each_audience_is_tried():
    assert set(dist.SMOKE) == {"train", "crowd"}
    for code in dist.SMOKE.values():
        compile(code, "smoke", "exec")


def test_the_oldest_versions_are_those_that_pyproject_allows():
    """`make test-oldest` installs exactly the lower ends of the ranges that it is there to test."""
    pinned = dict(
        re.findall(r"^([\w.-]+)==([\d.]+)$", (ROOT / "constraints-oldest.txt").read_text(), re.M)
    )
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    lines = [line for group in groups for line in group]
    lowest = dict(
        re.match(r"([\w.-]+)(?:\[.*?\])?>=([\d.]+)", x).groups() for x in lines if ">=" in x
    )
    named = {
        "scikit-learn",
        "skorch",
        "dask",
        "distributed",
        "numpy",
        "pandas",
        "fastapi",
        "sqlalchemy",
    }
    assert named <= set(pinned)
    for name, version in pinned.items():
        if name in lowest:
            assert version == lowest[name] or version.startswith(f"{lowest[name]}."), name


def test_the_tests_of_the_oldest_versions_exist():
    for line in (ROOT / "tests" / "oldest.txt").read_text().split():
        assert (ROOT / line).exists(), line
