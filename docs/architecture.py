"""Draw the rooms of accelerando and the imports between them, from the source code.

``python docs/architecture.py`` writes ``docs/images/rooms.svg``. ``tests/test_import_graph.py``
fails if an import points up, or if the committed drawing is not the present one.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "accelerando"
DRAWING = Path(__file__).parent / "images" / "rooms.svg"

# From top to bottom. A module may import from its own level's room and from rooms below.
LEVELS: list[tuple[str, ...]] = [
    ("cli",),
    ("demo", "doctor", "testing"),
    ("plot",),
    ("estimators",),
    ("search", "crowd"),
    ("cost",),
    ("_cluster",),
    ("_engine",),
    ("batch_size",),
    ("policies",),
    ("monitor", "sync", "compress"),
    ("base",),
]
ROOMS = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
# Modules next to the packages: the commands belong to the cli, the rest to everybody.
COMMANDS = {"cli", "__main__", "_cost_commands", "_crowd_commands"}
FACADE = "__init__"  # `import accelerando` loads the estimators when they are asked for


def modules() -> dict[str, Path]:
    """Return the files of all modules by their dotted names without the package's."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts)] = path
    return found


def room_of(module: str) -> str | None:
    """Return the room of a module; None for the package's own face."""
    first = module.split(".", maxsplit=1)[0]
    if first == FACADE:
        return None
    if first in COMMANDS:
        return "cli"
    return first if first in ROOMS else "base"


@functools.cache  # a test asks for the graph and for the drawing
def imports_of(path: Path) -> set[str]:
    """Return what a file imports of accelerando, inside functions as well, without the prefix."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module == "accelerando":
                found.update(alias.name for alias in node.names)
            elif node.module.startswith("accelerando."):
                found.add(node.module.removeprefix("accelerando."))
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found.update(n.removeprefix("accelerando.") for n in names if "accelerando." in n)
    return found


def edges() -> Counter[tuple[str, str]]:
    """Return how many modules of a room import from another room."""
    counted: Counter[tuple[str, str]] = Counter()
    for module, path in modules().items():
        source = room_of(module)
        if source is None:
            continue
        targets = {room_of(name) for name in imports_of(path)}
        for target in targets - {source, None}:
            assert target is not None
            counted[source, target] += 1
    return counted


def drawing() -> str:
    """Return the rooms and the imports between them as SVG text."""
    width, height, gap = 150, 34, 62
    files = Counter(room for room in map(room_of, modules()) if room)
    place: dict[str, tuple[float, float]] = {}
    lines = []
    for level, rooms in enumerate(LEVELS):
        for number, room in enumerate(rooms):
            x = 380 + (number - (len(rooms) - 1) / 2) * (width + 60)
            place[room] = (x, 40 + level * gap)
    for (source, target), count in sorted(edges().items()):
        (x1, y1), (x2, y2) = place[source], place[target]
        bend = (
            0.0
            if ROOMS[target] == ROOMS[source] + 1
            else 90.0 + 22 * (ROOMS[target] - ROOMS[source])
        )
        side = 1 if (ROOMS[source] + ROOMS[target]) % 2 else -1
        middle = (x1 + x2) / 2 + side * bend
        lines.append(
            f'<path d="M{x1:.0f},{y1 + height / 2:.0f} Q{middle:.0f},{(y1 + y2) / 2:.0f} '
            f'{x2:.0f},{y2 - height / 2:.0f}" fill="none" stroke="#8899aa" '
            f'stroke-width="{min(4.0, 0.6 + 0.25 * count):.2f}" marker-end="url(#arrow)">'
            f"<title>{source} imports {target} in {count} modules</title></path>"
        )
    for room, (x, y) in place.items():
        lines.append(
            f'<rect x="{x - width / 2:.0f}" y="{y - height / 2:.0f}" width="{width}" '
            f'height="{height}" rx="6" fill="#eef3f8" stroke="#34506b"/>'
            f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle">{room} ({files[room]})</text>'
        )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="760" '
        f'height="{60 + gap * len(LEVELS):.0f}" font-family="sans-serif" font-size="14">\n'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" '
        'markerHeight="6" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#8899aa"/></marker>'
        "</defs>\n" + "\n".join(lines) + "\n</svg>\n"
    )


if __name__ == "__main__":
    DRAWING.write_text(drawing())
    print(f"Written: {DRAWING.relative_to(ROOT)}")
