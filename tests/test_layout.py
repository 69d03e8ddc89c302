"""The layout that CONTRIBUTING.md shows is that of the folders."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vanilla_transformer"
LAYOUT = re.search(r"^```text\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.M | re.S)[
    1
]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def rooms():
    """The line of the layout that each room stands on, by the room's name; from top to bottom."""
    lines = re.findall(r"^  (\S.*?)  ", LAYOUT, flags=re.M)
    return {name: number for number, line in enumerate(lines) for name in line.split(", ")}


def room_of(path):
    inside = path.relative_to(PACKAGE).parts
    if inside[0].endswith("_vanilla_transformer.py"):
        return "*_vanilla_transformer.py"
    return inside[0] + "/" * (len(inside) > 1)


def test_the_layout_names_every_room_and_no_other():
    assert {room_of(path) for path in FILES.values()} == set(rooms())
    folders = set(re.findall(r"^(\w+)/", LAYOUT, flags=re.M))
    assert folders == {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.rglob("*.py"))} | {
        "model_cards"
    }
