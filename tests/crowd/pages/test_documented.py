"""Every key of an experiment file and every sentence of the page stands in the documentation."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from accelerando.crowd.experiment.settings import Settings
from accelerando.crowd.experiment.texts import TEXTS

PAGE = (Path(__file__).parents[3] / "docs" / "crowd-experiment-file.md").read_text()


def models_in(kind: Any) -> list[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [model for argument in get_args(kind) for model in models_in(argument)]


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        annotation = field.annotation
        inner = models_in(annotation)
        named = str(annotation).startswith("dict")
        listed = str(annotation).startswith("list")
        if not inner or listed or named:
            yield key
        if inner and not listed:
            middle = "NAME." if named else ""
            yield from keys(inner[0], f"{key}.{middle}")


def test_every_key_is_documented() -> None:
    missing = []
    for key in keys(Settings):
        wanted = key.replace("completion.NAME", "completion.done")
        if wanted.startswith("fixed.NAME.") or wanted == "samplers.NAME.class":
            wanted = wanted.rpartition(".")[2]  # shown inside an example
            found = re.search(rf"[{{`]{wanted}[:`]", PAGE)
        else:
            found = re.search(rf"`{re.escape(wanted)}`", PAGE)
        if not found:
            missing.append(wanted)
    assert missing == []


def test_every_sentence_is_documented_as_it_is() -> None:
    assert [key for key, text in TEXTS.items() if f"| `{key}` | {text} |" not in PAGE] == []
