"""The layout that CONTRIBUTING.md shows is that of the folders, and imports only go down it."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

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


def imports(name, types=True):
    """The modules of this package that a module imports, anywhere in it, with the line; those for types alone, too, or not."""
    path = FILES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if not types:
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level]) if node.level else ""
            module = ".".join(filter(None, (above, node.module)))
            found = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for imported in found:
            for candidate in (imported, imported.rpartition(".")[0]):
                if candidate in FILES:
                    yield candidate, node.lineno
                    break


def test_the_layout_names_every_room_and_no_other():
    assert {room_of(path) for path in FILES.values()} == set(rooms())
    folders = set(re.findall(r"^(\w+)/", LAYOUT, flags=re.M))
    # what is built here is no room: environments, build/, dist/, runs/
    built = {"build", "dist", "runs"}
    shown = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name not in built]
    assert folders == {path.name for path in shown if any(path.rglob("*.py"))} | {"model_cards"}


def test_imports_only_go_down():
    line = rooms()
    wrong = [
        f"{name}:{number} imports {imported}"
        for name, path in FILES.items()
        for imported, number in imports(name)
        if room_of(path) != room_of(FILES[imported]) and line[room_of(path)] >= line[room_of(FILES[imported])]
    ]
    assert wrong == []


@pytest.mark.parametrize("room", [*(name.removesuffix("/") for name in rooms() if name.endswith("/"))])
def test_a_room_can_be_imported_before_all_others(room, snippets):
    snippets(f"import vanilla_transformer.{room}")


def test_no_module_imports_itself_by_way_of_others():
    """Imports for types alone are not run."""
    graph = {name: {imported for imported, _ in imports(name, types=False)} - {name} for name in FILES}
    tuple(TopologicalSorter(graph).static_order())
