"""Kinds of pictures that are written."""

from pathlib import Path

__all__ = ["picture_format"]

FORMATS = ("png", "pdf", "svg")


def picture_format(path: str | Path) -> str:
    """Return the format that the name of a picture asks for; PNG for a name without an ending.

    Raises:
        ValueError: for the name of anything else.
    """
    ending = Path(path).suffix.removeprefix(".").lower() or FORMATS[0]
    if ending not in FORMATS:
        raise ValueError(f"{path}: no picture is written as .{ending}; name it .png, .pdf or .svg.")
    return ending
