"""What leaves this machine: recipe, scores and card name files without saying where they stand here."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from vanilla_transformer.utils.names import is_hub_id

_PATHS = frozenset({"source", "target", "path", "output_dir", "start_from", "name", "files"})
"""Fields of recipes and reports that may name files or folders; `name` of a file, or of a part of the data."""


def base_name(text: str) -> str:
    """Return the last part of a path, or of each of a report's paths (`a/x.en -> a/x.de`); other text as it is.

    What may be the id of a Hub repository, `owner/name`, stays where there is no folder of that name.
    """
    return " -> ".join(", ".join(map(_base_name, one.split(", "))) for one in text.split(" -> "))


def _base_name(path: str) -> str:
    if is_hub_id(path) and "." not in path.rpartition("/")[2]:
        return path
    windows = PureWindowsPath(path)
    name = windows.name if windows.drive or "\\" in path else PurePosixPath(path).name
    return name or path


def public_values(values: Any, field: str = "") -> Any:
    """Return a recipe's or a report's values with file names in the place of paths."""
    if isinstance(values, Mapping):
        return {name: public_values(value, str(name)) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [public_values(value, field) for value in values]
    if isinstance(values, str) and (field in _PATHS or _is_absolute(values)):
        return base_name(values)
    return values


def _is_absolute(text: str) -> bool:
    return "\n" not in text and bool(re.match(r"/[^/\s]|~/|[A-Za-z]:[\\/]", text))


def without_nulls(values: Any) -> Any:
    """Return nested values without what is None, and without what is empty for it."""
    if not isinstance(values, Mapping):
        return values
    kept = {name: without_nulls(value) for name, value in values.items() if value is not None}
    return {name: value for name, value in kept.items() if not (value == {} and values[name])}


def one_line(text: object) -> str:
    """Return text on one line."""
    return " ".join(str(text).split())


def escape_markdown(text: object) -> str:
    """Return text that Markdown shows as it stands, on one line: no heading, link, emphasis, cell or tag comes of it."""
    escaped = re.sub(r"([\\`*\[\]<|~$&])", r"\\\1", one_line(text))
    # within a word an underscore is nothing but that
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", escaped)


def card_of_repository(text: str, repo_id: str) -> str:
    """Return the card of a run, written for its folder, with the id of a repository in its lines of code.

    Cards that were not written by a run have none of these lines, and stay as they are.
    """
    for call in ('from_pretrained(".")', 'from_pretrained(".", ', 'model="."'):
        text = text.replace(call, call.replace('"."', f'"{repo_id}"'))
    text = text.replace('Replace `"."` by this folder or its id on the Hub.\n', "")
    return text.replace("generate --model FOLDER --input FILE", f"generate --model {repo_id} --input FILE")
