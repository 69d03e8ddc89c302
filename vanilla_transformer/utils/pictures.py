"""Pictures: their formats, and fonts for any text."""

from functools import cache
from pathlib import Path

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


@cache
def fonts_for(text: str) -> tuple[list[str], frozenset[str]]:
    """Find fonts for a text: matplotlib's own, and installed ones for what that lacks (Chinese, Thai, emoji …).

    Returns:
        Names of font families, and the characters of the text that one of them can draw.
    """
    from matplotlib import font_manager, ft2font

    def covered(font_path: str, characters: set[str]) -> set[str]:
        font = ft2font.FT2Font(font_path)
        return {character for character in characters if font.get_char_index(ord(character))}

    own = "DejaVu Sans"
    families = [own]
    missing = {character for character in text if character.isprintable()}
    drawable = covered(font_manager.findfont(own), missing)
    missing -= drawable
    for entry in font_manager.fontManager.ttflist:
        # The "Last Resort" font has a box with a symbol of the script for everything.
        if missing and "Last Resort" not in entry.name and (found := covered(entry.fname, missing)):
            families.append(entry.name)
            drawable |= found
            missing -= found
    return families, frozenset(drawable)
