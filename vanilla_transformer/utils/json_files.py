"""JSON files: how this package writes them, and one sentence for those that are damaged."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vanilla_transformer.utils.errors import first_line


def dump_json(values: Any) -> str:
    """Return plain values as the text of a file."""
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, values: Any) -> None:
    """Write plain values to a file."""
    path.write_text(dump_json(values), encoding="utf-8")


def read_json_object(
    path: str | os.PathLike,
    named: str | None = None,
    *,
    needs: Iterable[str] = (),
    remedy: str = "copy it again",
    error: type[ValueError] = ValueError,
) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Args:
        named: how a sentence names the file; by default by its path.
        needs: names that it has.
        remedy: what to do where it is damaged.
        error: class of what is raised then.

    Raises:
        error: for a file that is not JSON, or holds something else than an object with these names.
        OSError: for a file that cannot be read.
    """
    named = named or str(path)
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:  # of JSON and of UTF-8
        reason = "nested too deeply" if isinstance(problem, RecursionError) else first_line(problem)
        raise error(f"{named} is damaged, as it is not valid JSON ({reason}); {remedy}.") from problem
    if not isinstance(values, dict):
        raise error(f"{named} is damaged, as it holds {_kind(values)} and not an object; {remedy}.")
    if lost := [name for name in needs if name not in values]:
        raise error(f"{named} is damaged, as it lacks {', '.join(lost)}; {remedy}.")
    return values


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list):
        return "a list"
    return "a string" if isinstance(value, str) else "a number"
