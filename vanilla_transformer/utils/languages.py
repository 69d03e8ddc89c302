"""Names of languages for people, by their codes."""

from babel import Locale, UnknownLocaleError


def language_name(code: str) -> str:
    """Return the English name of a language, such as "German" for `de` or "Portuguese (Brazil)" for `pt-BR`.

    What is no code of CLDR, such as the name of a column, is returned as it is.
    """
    try:
        return Locale.parse(code.replace("-", "_")).get_display_name("en") or code
    except (UnknownLocaleError, ValueError, TypeError):
        pass
    # languages without a locale of their own have a name all the same
    return Locale("en").languages.get(code, code)
