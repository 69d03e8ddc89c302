"""Name the nearest of what there is where a name is mistyped."""

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean", "nearest_name"]


def nearest_name(name: str, choices: Iterable[str], *, least: float = 0.6) -> str | None:
    """Return the choice that is most like a name, or None where none is alike by at least so much, 0 to 1."""
    near = difflib.get_close_matches(name, list(choices), n=1, cutoff=least)
    return near[0] if near else None


def did_you_mean(name: str, choices: Iterable[str], otherwise: str = "") -> str:
    """Return the end of a sentence that names the nearest choice, or `otherwise` where none is near."""
    near = nearest_name(name, choices)
    return f"did you mean {near!r}?" if near else otherwise
