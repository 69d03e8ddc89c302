"""Names that people give: the nearest one where a name is mistyped, and whether a name may be an id on the Hub."""

import difflib
import os
import re
from collections.abc import Iterable

MOST_CHOICES = 16
"""A sentence lists no more choices than these."""


def nearest_name(name: str, choices: Iterable[str], *, least: float = 0.6) -> str | None:
    """Return the choice that is most like a name, or None where none is alike by at least so much, 0 to 1."""
    near = difflib.get_close_matches(name, list(choices), n=1, cutoff=least)
    return near[0] if near else None


def did_you_mean(name: str, choices: Iterable[str], otherwise: str | None = None) -> str:
    """Return the end of a sentence about a name that is none of the choices: the nearest one.

    Args:
        otherwise: where none is near; by default all choices, where they are few.
    """
    choices = sorted(choices)
    if near := nearest_name(name, choices):
        return f"did you mean {near!r}?"
    if otherwise is not None:
        return otherwise
    if not choices:
        return "it has no fields."
    few = len(choices) <= MOST_CHOICES
    return f"the choices are {', '.join(choices)}." if few else "no field has a name like it."


def is_hub_id(name: str) -> bool:
    """Tell whether a name can only be the id of a Hub repository, `owner/name`, as no file or folder here has it."""
    looks_like_one = re.fullmatch(r"\w[\w.-]*/[\w.-]+", name, re.ASCII) is not None
    return looks_like_one and not os.path.exists(name)
