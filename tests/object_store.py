"""A store of objects as S3 is, for fsspec: there are no directories, and listings are cached.

A name with slashes is one name. A directory "exists" as long as an object begins with its name, so
that an empty one cannot be made. A listing is remembered until somebody asks for a fresh one.
"""

from __future__ import annotations

from typing import ClassVar

import fsspec
from fsspec.spec import AbstractFileSystem


class ObjectStore(AbstractFileSystem):
    """All objects are in this class: every process has its own."""

    protocol = "objects"
    cachable = True
    store: ClassVar[dict[str, bytes]] = {}

    def __init__(self, **options):
        super().__init__(**options)
        self.listings = {}

    def _below(self, path):
        path = self._strip_protocol(path).rstrip("/")
        if path not in self.listings:
            found = [name for name in self.store if name.startswith(path + "/")]
            self.listings[path] = sorted({path + "/" + name[len(path) + 1 :] for name in found})
        return self.listings[path]

    def invalidate_cache(self, path=None):
        self.listings.clear()

    def makedirs(self, path, exist_ok=False):
        pass

    def isdir(self, path):
        return bool(self._below(path))

    def ls(self, path, detail=True, **options):
        if not self._below(path):
            raise FileNotFoundError(path)
        names = self._below(path)
        return [{"name": n, "type": "file"} for n in names] if detail else list(names)

    def info(self, path, **options):
        path = self._strip_protocol(path)
        if path in self.store:
            return {"name": path, "size": len(self.store[path]), "type": "file"}
        raise FileNotFoundError(path)

    def cat_file(self, path, start=None, end=None, **options):
        try:
            return self.store[self._strip_protocol(path)][start:end]
        except KeyError:
            raise FileNotFoundError(path) from None

    def pipe_file(self, path, value, mode="overwrite", **options):
        self.store[self._strip_protocol(path)] = bytes(value)

    def rm_file(self, path):
        del self.store[self._strip_protocol(path)]


fsspec.register_implementation("objects", ObjectStore, clobber=True)
