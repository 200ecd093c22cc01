"""Reference runs on a Dask cluster of three processes, with one rank and with three."""

from __future__ import annotations

RUNS = {}
KILLED = "killed"
