"""The demo's data: right answers, one for each source, and splits that share nothing."""

import random
import re
from collections import Counter, defaultdict
from datetime import date, datetime

import pytest

from vanilla_transformer.data import normalization as module
from vanilla_transformer.data.normalization import CURRENCIES, LANGUAGES, normalization_pairs, normalization_splits


@pytest.fixture(scope="module")
def splits():
    return normalization_splits(train=8_000, validation=300, test=1_000)


class OneChoice(random.Random):
    """A source of randomness whose `choice` takes the given things, in order, where they are on offer."""

    def __init__(self, *wanted):
        super().__init__(0)
        self.wanted = list(wanted)

    def choice(self, options):
        return self.wanted.pop(0) if self.wanted and self.wanted[0] in options else super().choice(options)


def test_the_same_seed_gives_the_same_pairs_and_another_seed_others():
    assert normalization_pairs(200, seed=3) == normalization_pairs(200, seed=3)
    assert normalization_pairs(200, seed=3)[:50] == normalization_pairs(50, seed=3)
    assert not set(normalization_pairs(200, seed=3)) & set(normalization_pairs(200, seed=4))


def test_splits_have_their_sizes_and_share_no_source_and_no_answer(splits):
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 8_000, "validation": 300, "test": 1_000}
    names = list(splits)
    for i, one in enumerate(names):
        assert len({source for source, _ in splits[one]}) == len(splits[one])
        for other in names[i + 1 :]:
            for side in (0, 1):
                assert not {pair[side] for pair in splits[one]} & {pair[side] for pair in splits[other]}


def test_held_out_pairs_do_not_depend_on_the_size_of_the_training_set(splits):
    other = normalization_splits(train=10, validation=300, test=1_000)
    assert other["test"] == splits["test"]
    assert other["validation"] == splits["validation"]


def test_excluded_answers_stay_away_in_every_language():
    held_out = normalization_pairs(2_000, seed=0)
    answers = {target for _, target in held_out}
    assert answers & {target for _, target in normalization_pairs(2_000, seed=1)}
    assert not answers & {target for _, target in normalization_pairs(2_000, seed=1, exclude=held_out)}


def test_a_source_drawn_twice_has_the_same_answer_both_times():
    answers, drawn = defaultdict(set), Counter()
    # Many small draws instead of a large one, which would not let a source come twice.
    for seed in range(60):
        for source, target in normalization_pairs(500, seed):
            answers[source].add(target)
            drawn[source] += 1
    assert sum(times > 1 for times in drawn.values()) > 100
    assert {source: found for source, found in answers.items() if len(found) > 1} == {}


def test_currency_words_and_symbols_mean_one_currency():
    """Beside its digits, an amount holds a currency; the same rest in any two languages is the same currency."""
    meaning = defaultdict(set)
    for language in LANGUAGES:
        for currency in CURRENCIES:
            for form in ("name", "standard"):
                for _ in range(20):
                    source, target = module._amount(OneChoice(currency, form), module._LOCALES[language])
                    meaning[re.sub(r"[\d.,\s]", "", source)].add(target[:3])
    assert len(meaning) > 2 * len(CURRENCIES)
    assert {words: codes for words, codes in meaning.items() if len(codes) > 1} == {}
    assert set.union(*meaning.values()) == set(CURRENCIES)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_date_of_two_years_reads_back_from_one_form_only(language):
    answers = defaultdict(set)
    locale = module._LOCALES[language]
    for day in range(date(2023, 1, 1).toordinal(), date(2025, 1, 1).toordinal()):
        for length in ("full", "long", "medium"):
            source = module.format_date(date.fromordinal(day), length, locale=locale)
            answers[source].add(day)
            # The year is never cut to two digits, and no date is digits and slashes.
            assert re.search(r"202[34]", source)
            assert "/" not in source
    assert all(len(days) == 1 for days in answers.values())


@pytest.mark.parametrize(
    ("kind", "language", "wanted", "source", "target"),
    [
        (
            "_date",
            "de",
            ("full",),
            r"(\w+tag|Mittwoch), \d+\. \w+ \d{4}",
            r"\d{4}-\d\d-\d\d",
        ),
        ("_date", "en", ("long",), r"[A-Z]\w+ \d+, \d{4}", r"\d{4}-\d\d-\d\d"),
        ("_date_and_time", "en", ("long",), r"\w+ \d+, \d{4}, \d+:\d\d\s[AP]M", r"\d{4}-\d\d-\d\dT\d\d:\d\d"),
        ("_amount", "es", ("USD", "name"), r"[\d.]+,\d\d dólar(es)? estadounidenses?", r"USD \d+\.\d\d"),
        ("_amount", "en", ("CAD", "standard"), r"CA\$[\d,]+\.\d\d", r"CAD \d+\.\d\d"),
        ("_duration", "sv", (), r"\d+ \w+ och \d+ \w+", r"P(\d+DT\d+H|T\d+H\d+M|T\d+M\d+S)"),
        ("_large_number", "es", (), r"[\d,]+ (millón|millones|mil millones)", r"\d+(\.\d)?e[69]"),
    ],
)
def test_forms_of_each_kind(kind, language, wanted, source, target):
    written, answer = getattr(module, kind)(OneChoice(*wanted), module._LOCALES[language])
    assert re.fullmatch(source, written), written
    assert re.fullmatch(target, answer), answer


def test_answers_agree_with_the_digits_of_their_sources(splits):
    """Read back by rules of their own: day, year, minute and cents stand in source and answer alike."""
    checked = Counter()
    for source, target in splits["test"]:
        numbers = [int(number) for number in re.findall(r"\d+", source)]
        if re.fullmatch(r"\d{4}-.*", target):
            when = datetime.fromisoformat(target)
            assert {when.day, when.year} <= set(numbers), (source, target)
            if "T" in target:
                assert numbers[-1] == when.minute
                half = re.search(r"[AP]M$", source)
                hour = numbers[-2] % 12 + 12 * (half[0] == "PM") if half else numbers[-2]
                assert hour == when.hour, (source, target)
            checked["date"] += 1
        elif re.match(r"P[T\d]", target):
            assert numbers == [int(number) for number in re.findall(r"\d+", target)]
            checked["duration"] += 1
        elif re.match(r"[A-Z]{3} ", target):
            assert re.sub(r"\D", "", source) == re.sub(r"\D", "", target), (source, target)
            checked["amount"] += 1
        elif "e" in target:
            number, power = target.split("e")
            assert re.sub(r"\D", "", source) == re.sub(r"\D", "", number), (source, target)
            milliards = re.search(r"mil+[ij]ard|billion|mil m", source.lower())
            assert power == ("9" if milliards else "6"), (source, target)
            checked["number"] += 1
    assert min(checked[kind] for kind in ("date", "duration", "amount", "number")) > 30
    assert sum(checked.values()) == len(splits["test"])


def test_every_language_and_kind_takes_part_and_sources_stay_short(splits):
    sources = [source for source, _ in splits["train"]]
    assert max(map(len, sources)) <= 45
    # One telling word for each language.
    for word in ("März", "March", "marzo de", "mars", "marzo", "och"):
        assert any(word in source for source in sources), word
    kinds = Counter(re.sub(r"\d+", "9", target) for _, target in splits["train"])
    assert {"9-9-9", "9-9-9T9:9", "EUR 9.9", "CAD 9.9", "P9DT9H", "PT9H9M", "PT9M9S", "9.9e9"} <= set(kinds)


def test_english_times_come_three_times_as_often_as_those_of_another_language(splits):
    """All the kinds of pairs keep their shares, and all other languages theirs."""
    times = [source for source, target in splits["train"] if re.fullmatch(r"[\d-]+T[\d:]+", target)]
    assert len(times) / len(splits["train"]) == pytest.approx(0.3, abs=0.03)
    english = [source for source in times if re.search(r"[AP]M$", source)]
    assert len(english) / len(times) == pytest.approx(3 / (len(LANGUAGES) + 2), abs=0.03)
    spanish = [source for source in times if " de " in source]
    assert len(spanish) / len(times) == pytest.approx(1 / (len(LANGUAGES) + 2), abs=0.03)


def test_spaces_are_the_ones_people_type(splits):
    assert not any(re.search(r"[^\S ]", source) for source, _ in splits["train"])


def test_no_pairs_and_fewer_than_none():
    assert normalization_pairs(0) == []
    with pytest.raises(ValueError, match="count=-1"):
        normalization_pairs(-1)
