"""Files of an experiment, from a folder, an upload or a ZIP file, within limits."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from accelerando.crowd.experiment.media import Media, n_pixels, recognize
from accelerando.crowd.experiment.problems import SettingsProblem

__all__ = ["PACKINGS", "Files", "Limits", "read_folder", "read_upload", "read_zip"]

# Python unpacks pieces of the other kinds whole: 4 kB of bzip2 can become 600 MB.
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class Limits:
    """Limits of uploads.

    Attributes
    ----------
    upload_bytes : int
        Maximum size of a request.
    file_bytes, total_bytes : int
        Maximum size of one file and of all files, unpacked.
    files : int
        Maximum number of files.
    ratio : float
        Maximum ratio of unpacked to packed size; images hardly shrink at all.
    pixels : int
        Maximum width times height of an image.
    sessions_per_address : int or None
        Sessions that one address may begin within ten minutes, per web process.
    """

    upload_bytes: int = 256 * 2**20
    file_bytes: int = 64 * 2**20
    total_bytes: int = 512 * 2**20
    files: int = 10_000
    ratio: float = 200.0
    pixels: int = 50_000_000
    sessions_per_address: int | None = 600


@dataclass
class Files:
    """The files of an experiment, by kind.

    Attributes
    ----------
    media : dict of name to Media
    lists : dict of name to str
        CSV files.
    settings : dict of name to bytes
        YAML files.
    problems : list of SettingsProblem
    notices : list of str
        Files that are not used, with the reason.
    """

    media: dict[str, Media] = field(default_factory=dict)
    lists: dict[str, str] = field(default_factory=dict)
    settings: dict[str, bytes] = field(default_factory=dict)
    problems: list[SettingsProblem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def add(self, name: str, data: bytes, limits: Limits) -> None:
        """Add a file according to its kind."""
        suffix = PurePosixPath(name).suffix.lower()
        base = PurePosixPath(name).name
        if len(data) > limits.file_bytes:
            self._too_large(name, len(data), limits)
        elif name in self:
            self._twice(name)
        elif suffix in (".yaml", ".yml"):
            self.settings[name] = data
        elif suffix in (".csv", ".txt"):
            try:
                text = data.decode("utf-8-sig")
            except UnicodeDecodeError:
                self._problem(name, "the list is not UTF-8.", "Save it in UTF-8.")
            else:
                if name in self.lists:
                    self._problem(name, "the file is there twice.", "Rename one of them.")
                self.lists[name] = text
        elif not data:
            self._problem(name, "the file is empty.", "Copy it again, or remove it.")
        else:
            found = recognize(data)
            if found is None and suffix in _DOCUMENTS:
                self.notices.append(f"not used: {name}: a document is no item.")
            elif found is None:
                self._problem(
                    name,
                    "this is neither a picture, film nor sound that browsers show.",
                    "Use PNG, JPEG, GIF, WebP, AVIF, HEIC, TIFF, BMP, SVG, MP4, WebM, MOV, MP3, "
                    "OGG, WAV, FLAC or M4A.",
                )
            elif (pixels := n_pixels(data, found)) is not None and pixels > limits.pixels:
                self._problem(
                    name,
                    f"the picture has {pixels:,} pixels.",
                    f"At most {limits.pixels:,} are taken: phones cannot show larger ones.",
                )
            else:
                self.media[name] = Media(base, found, data)

    def merge(self, other: Files) -> None:
        """Add the files of another source."""
        for name in (*other.media, *other.lists, *other.settings):
            if name in self:
                self._twice(name)
        self.media.update(other.media)
        self.lists.update(other.lists)
        self.settings.update(other.settings)
        self.problems.extend(other.problems)
        self.notices.extend(other.notices)

    def skip(self, name: str, why: str) -> None:
        """Add a notice that a file is not read."""
        self.notices.append(f"not used: {name}: {why}.")

    def _too_large(self, name: str, size: int, limits: Limits) -> None:
        most = f"At most {limits.file_bytes:,} are taken."
        self._problem(name, f"the file has {size:,} bytes.", most)

    def __contains__(self, name: str) -> bool:
        return name in self.media or name in self.lists or name in self.settings

    def _twice(self, name: str) -> None:
        self._problem(name, "the file is there twice.", "Rename one of them.")

    def _problem(self, name: str, message: str, remedy: str) -> None:
        self.problems.append(SettingsProblem(message, remedy, name))


def read_folder(folder: Path, limits: Limits = Limits()) -> Files:  # noqa: B008 (frozen)
    """Return all files in a folder and its subfolders, except hidden files and links."""
    files = Files()
    left = limits.total_bytes
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() or _of_the_system(name):
            continue
        if _hidden(name):
            files.skip(name, "hidden files are no items")
        elif path.is_symlink():
            files.skip(name, "links are not followed")
        elif path.is_file():
            size = path.stat().st_size
            left -= min(size, limits.file_bytes)
            if left < 0 or len(files.media) >= limits.files:
                what = f"more than {limits.files:,} files, or {limits.total_bytes:,} bytes."
                files._problem(folder.name, what, "Use fewer, or smaller ones.")
                break
            if size > limits.file_bytes:
                files._too_large(name, size, limits)
            else:
                files.add(name, path.read_bytes(), limits)
    return files


def read_upload(name: str, data: bytes, limits: Limits = Limits()) -> Files:  # noqa: B008 (frozen)
    """Return an uploaded file, or the contents of a ZIP file."""
    if data[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return read_zip(data, name, limits)
    files = Files()
    files.add(PurePosixPath(name.replace("\\", "/")).name or "file", data, limits)
    return files


def read_zip(
    data: bytes,
    name: str = "items.zip",
    limits: Limits = Limits(),  # noqa: B008 (frozen)
) -> Files:
    """Return the contents of a ZIP file, unpacked in memory within the limits.

    Sizes are counted while unpacking, because headers of a ZIP file may be wrong. Nothing is
    written to disk, and no name in the ZIP file is used as a path. Unsafe entries (``..``, absolute
    paths, links) are problems, because such a file deserves attention.
    """
    files = Files()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry, content in _entries(archive, files, name, limits):
                files.add(entry, content, limits)
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, ValueError) as error:
        files._problem(name, f"the ZIP cannot be read: {error}.", "Pack it again.")
    return files


def _entries(
    archive: zipfile.ZipFile, files: Files, name: str, limits: Limits
) -> Iterator[tuple[str, bytes]]:
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    if len(entries) > limits.files:
        files._problem(name, f"{len(entries):,} files in it.", f"At most {limits.files:,}.")
        return
    left = limits.total_bytes
    for entry in entries:
        path = entry.filename.replace("\\", "/")
        if _of_the_system(path):
            continue
        if _hidden(path):
            files.skip(f"{name}/{path}", "hidden files are no items")
            continue
        if path.startswith("/") or ".." in path.split("/") or ":" in path.split("/")[0]:
            files._problem(name, f"the entry {path!r} points outside.", "Pack the ZIP again.")
            continue
        if stat.S_ISLNK(entry.external_attr >> 16):
            files._problem(name, f"the entry {path!r} is a link.", "Pack the file itself.")
            continue
        if entry.flag_bits & 1:
            files._problem(name, "the ZIP has a password.", "Pack it without one.")
            return
        if entry.compress_type not in PACKINGS:
            files._problem(name, f"the entry {path!r} is packed unusually.", "Pack a plain ZIP.")
            continue
        most = min(limits.file_bytes, left, int(limits.ratio * max(entry.compress_size, 1024)))
        try:
            with archive.open(entry) as stream:
                content = stream.read(most + 1)
        except (zipfile.BadZipFile, EOFError, RuntimeError, NotImplementedError) as error:
            files._problem(name, f"the entry {path!r} is damaged: {error}.", "Pack the ZIP again.")
            continue
        if len(content) > most:
            files._problem(
                name,
                f"the entry {path!r} unpacks to more than {most:,} bytes.",
                f"A file may have {limits.file_bytes:,} bytes, all of them {limits.total_bytes:,}, "
                f"and not more than {limits.ratio:g} times its packed size.",
            )
            return
        left -= len(content)
        yield path, content


def _of_the_system(name: str) -> bool:
    """Return True for files that macOS and Windows put into folders and ZIP files by themselves."""
    parts = name.split("/")
    return "__MACOSX" in parts or parts[-1].startswith("._") or parts[-1].lower() in _SYSTEM


def _hidden(name: str) -> bool:
    return any(p.startswith(".") and p not in (".", "..") for p in name.split("/"))


_SYSTEM = {".ds_store", ".localized", "thumbs.db", "ehthumbs.db", "desktop.ini"}
# Kinds that people keep next to their pictures. Other unknown files are refused: a damaged picture
# looks like one of them.
_DOCUMENTS = {
    *(".md", ".rst", ".pdf", ".rtf", ".doc", ".docx", ".odt", ".pages", ".xls", ".xlsx", ".ods"),
    *(".numbers", ".ppt", ".pptx", ".json", ".jsonl", ".xml", ".html", ".htm", ".css", ".js"),
    *(".log", ".py", ".pyc", ".r", ".rmd", ".m", ".mat", ".ipynb", ".sav", ".bib", ".tex", ".tsv"),
}
