"""Dates, times, amounts, durations and large numbers as six languages write them, each with its one machine-readable form.

The written forms are those of the Unicode CLDR, through `Babel`, so month and weekday names, inflection, word order and
separators are the languages' own, there is no end of pairs, and every answer is exact:

    Montag, 3. März 2025, 14:05       2025-03-03T14:05     ISO 8601
    July 4, 1776                      1776-07-04
    5 timmar och 20 minuter           PT5H20M
    12.345,50 dólares canadienses     CAD 12345.50         ISO 4217, decimal point
    5,7 mil millones                  5.7e9                a number with its power of ten

No source has two answers. What could have two is left out: all-numeric dates with slashes (3/4 is a day in April or in
March), bare numbers (1.234 is more than a thousand or little more than one), and numbers above 999 milliards (an
American trillion is a European billion).
"""

import datetime
import random
from collections.abc import Callable, Iterable

from babel import Locale
from babel.dates import format_date, format_time
from babel.lists import format_list
from babel.numbers import format_compact_decimal, format_currency
from babel.units import format_unit

__all__ = ["CURRENCIES", "LANGUAGES", "normalization_splits", "normalization_pairs"]

LANGUAGES = ("de", "en", "es", "fr", "it", "sv")
"""CLDR locales of the sources. `en` is American English: month before day, and a clock of twelve hours."""

CURRENCIES = ("CAD", "CHF", "CZK", "DKK", "EUR", "GBP", "NOK", "PLN", "SEK", "USD")
"""ISO 4217 codes of the amounts. All have cents, and in `LANGUAGES` each symbol and name stands for one of them only."""

_LOCALES = {language: Locale.parse(language) for language in LANGUAGES}
_FIRST_DAY = datetime.date(1800, 1, 1).toordinal()
_LAST_DAY = datetime.date(2099, 12, 31).toordinal()

# The units that a duration is made of: a larger one, how many of the smaller make one of it, and both ISO 8601 forms.
_DURATIONS = (
    ("duration-day", "duration-hour", 30, 24, "P{}DT{}H"),
    ("duration-hour", "duration-minute", 24, 60, "PT{}H{}M"),
    ("duration-minute", "duration-second", 60, 60, "PT{}M{}S"),
)

Pair = tuple[str, str]


def normalization_pairs(count: int, seed: int | str = 0, exclude: Iterable[Pair] = ()) -> list[Pair]:
    """Draw `count` pairs of a written form and its machine-readable form.

    The same arguments give the same pairs with the same CLDR release. No source comes twice; an answer may, written in
    another language or at another length.

    Args:
        count: number of pairs.
        seed: of the draw.
        exclude: pairs whose sources and answers must not come up, to keep held-out data unseen.

    Raises:
        ValueError: `count` is negative.
    """
    if count < 0:
        raise ValueError(f"The number of written forms cannot be negative, but count={count}.")
    seen, unseen_answers = set(), set()
    for source, target in exclude:
        seen.add(source)
        unseen_answers.add(target)

    draw = random.Random(seed)
    weights = [weight for _, weight, _ in _KINDS]
    pairs: list[Pair] = []
    # The kinds of few forms run dry in a long list; the dates with a time, some 10^9 forms, never do.
    while len(pairs) < count:
        kind, _, languages = draw.choices(_KINDS, weights)[0]
        source, target = kind(draw, _LOCALES[draw.choice(languages)])
        # CLDR separates with three kinds of space that look alike; people type one.
        source = source.replace("\u202f", " ").replace("\u00a0", " ")
        if source not in seen and target not in unseen_answers:
            seen.add(source)
            pairs.append((source, target))
    return pairs


def normalization_splits(
    train: int = 40_000, validation: int = 500, test: int = 1_000, seed: int = 0
) -> dict[str, list[Pair]]:
    """Draw the splits `train`, `validation` and `test`, of which no two share a source or an answer.

    A split does not change when only the size of one after it in the order test, validation, train does.
    """
    held_out = normalization_pairs(test, f"{seed}/test")
    checked = normalization_pairs(validation, f"{seed}/validation", exclude=held_out)
    learned = normalization_pairs(train, f"{seed}/train", exclude=[*held_out, *checked])
    return {"train": learned, "validation": checked, "test": held_out}


def _day(draw: random.Random) -> datetime.date:
    return datetime.date.fromordinal(draw.randint(_FIRST_DAY, _LAST_DAY))


def _date(draw: random.Random, locale: Locale) -> Pair:
    day = _day(draw)
    return format_date(day, draw.choice(("full", "long", "medium")), locale=locale), day.isoformat()


def _date_and_time(draw: random.Random, locale: Locale) -> Pair:
    day = _day(draw)
    time = datetime.time(draw.randrange(24), draw.randrange(60))
    length = draw.choice(("full", "long"))
    # How a language joins the two, such as "{1}, {0}".
    source = str(locale.datetime_formats[length]).format(
        format_time(time, "short", locale=locale), format_date(day, length, locale=locale)
    )
    return source, f"{day.isoformat()}T{time.isoformat('minutes')}"


def _amount(draw: random.Random, locale: Locale) -> Pair:
    currency = draw.choice(CURRENCIES)
    # As many amounts of three digits as of six: what differs is where the separators stand.
    amount = round(10 ** draw.uniform(0, 6), 2)
    source = format_currency(amount, currency, locale=locale, format_type=draw.choice(("name", "standard")))
    return source, f"{currency} {amount:.2f}"


def _duration(draw: random.Random, locale: Locale) -> Pair:
    larger, smaller, most_larger, in_one, form = draw.choice(_DURATIONS)
    first, second = draw.randrange(1, most_larger), draw.randrange(1, in_one)
    units = [format_unit(first, larger, locale=locale), format_unit(second, smaller, locale=locale)]
    return format_list(units, locale=locale), form.format(first, second)


def _large_number(draw: random.Random, locale: Locale) -> Pair:
    tenths, power = draw.randrange(10, 10_000), draw.choice((6, 9))
    source = format_compact_decimal(tenths * 10 ** (power - 1), format_type="long", locale=locale, fraction_digits=1)
    return source, f"{tenths / 10:g}e{power}"


_KINDS: tuple[tuple[Callable[[random.Random, Locale], Pair], int, tuple[str, ...]], ...] = (
    (_date, 30, LANGUAGES),
    # English three times: its hours have to be counted on from AM and PM, those of the other languages only copied.
    (_date_and_time, 30, (*LANGUAGES, "en", "en")),
    (_amount, 25, LANGUAGES),
    (_duration, 10, LANGUAGES),
    (_large_number, 5, LANGUAGES),
)
"""What draws a pair of each kind, how often, and the languages to choose from, each as often as it is named."""
