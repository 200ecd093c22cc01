"""Run scripts one after another, each in a process of its own that has imported what it needs.

``python -W error -m tests.run_warm`` reads pairs of a script and a directory from the standard
input, and answers each with a line of JSON: exit code, output and errors. Workers of Dask clusters
that a script starts are warm, too, and the interpreter's options, such as ``-W error``, hold in all
processes.
"""

import json
import os
import runpy
import sys

from distributed.utils import get_mp_context

from tests.start_warm import start_workers_warm

NAMES = ("output", "errors")


def run(script, directory):
    """Run a script as ``python script`` does, in a directory that also gets its output."""
    start_workers_warm()
    os.chdir(directory)
    for stream, name in zip((sys.stdout, sys.stderr), NAMES, strict=True):
        with open(f"{directory}.{name}", "w") as file:
            os.dup2(file.fileno(), stream.fileno())
    sys.argv = [script]
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")


def main():
    start_workers_warm()
    for line in sys.stdin:
        script, directory = json.loads(line)
        process = get_mp_context().Process(target=run, args=(script, directory))
        process.start()
        process.join()
        texts = []
        for name in NAMES:
            with open(f"{directory}.{name}") as file:
                texts.append(file.read())
        print(json.dumps([process.exitcode, *texts]), flush=True)


if __name__ == "__main__":
    main()
