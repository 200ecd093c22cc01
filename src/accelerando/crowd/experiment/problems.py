"""Problems of an experiment's files, each with its line and its remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from accelerando.exceptions import AccelerandoError

__all__ = ["SettingsError", "SettingsProblem"]


@dataclass(frozen=True)
class SettingsProblem:
    """A problem in a file.

    Attributes
    ----------
    message : str
        What is wrong.
    remedy : str
        How to fix it.
    file : str
        Name of the file, without its folder.
    line, column : int or None
        Counted from 1; None for files without lines.
    key : str
        Dotted path of the setting, for example ``participants.answers``.
    """

    message: str
    remedy: str = ""
    file: str = ""
    line: int | None = None
    column: int | None = None
    key: str = ""

    def __str__(self) -> str:
        place = self.file
        if self.line is not None:
            place += f":{self.line}"
        key = f" {self.key}:" if self.key else ""
        place = f"{place}:" if place else ""
        return f"{place}{key} {self.message} {self.remedy}".strip()

    def to_json(self) -> dict[str, object]:
        """Return the fields as a dict."""
        return asdict(self)


class SettingsError(AccelerandoError, ValueError):
    """The files of an experiment have problems, which :attr:`problems` lists."""

    def __init__(self, problems: Sequence[SettingsProblem]) -> None:
        self.problems = list(problems)
        count = len(self.problems)
        head = "1 problem" if count == 1 else f"{count} problems"
        super().__init__("\n".join([f"{head}:", *(f"  {problem}" for problem in self.problems)]))
