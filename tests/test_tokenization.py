"""Tokenizers: exact size, lossless text, special tokens exactly once, the same after saving and retraining."""

import json
import os
import random
import subprocess
import sys
import time

import pytest
from transformers import AutoTokenizer
from transformers.utils import logging

from vanilla_transformer.tokenization import (
    MASK_TOKEN,
    SPECIAL_TOKENS,
    train_character_tokenizer,
    train_tokenizer,
    train_word_tokenizer,
    train_wordpiece_tokenizer,
    without_long_words,
)
from warm_python import warm_python

# Made from word lists, so that there is enough to merge and nothing to quote.
_NOUNS = ["dog", "house", "river", "tree", "boy", "Hund", "Häuser", "Fluß", "арбуз", "лес", "小狗", "房子", "🙂"]
_VERBS = ["sees", "paints", "finds", "sieht", "findet", "видит", "看见"]
CORPUS = [f"{a} {v} the {b}, {n}." for n, a in enumerate(_NOUNS) for v in _VERBS for b in _NOUNS]

# Texts that lose something in many a tokenizer. The first six are those of huggingface/transformers#44915.
HARD_TEXTS = [
    "a space before , this . that ! and ?",
    " != and ! = ",
    "double  spaces   and    more",
    " leading and trailing ",
    "123 a ~_! ./",
    "Was ?  « Oui » , dit-il ; « non ! » „so“ , ‚so‘ …",
    "他说：“你好，世界！”　全角空格",
    "family 👩‍👩‍👧‍👦 flag 🇩🇪 skin 👍🏽",
    "line\nbreaks\r\nand\ttabs\x0cand\u2028separators\u00a0",
    "e\u0301 is not \u00e9, ﬁ is not fi, ① is not 1",
    "العربية עברית हिन्दी ไทย 한국어 \u200f\u200d",
    "do n't, isn't, I'LL",
    "",
    " ",
    "\x00\x7f",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(CORPUS, 330)


@pytest.fixture(scope="module")
def reloaded(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def decode(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("size", [260, 261, 300, 330])
def test_size_is_exact(size):
    tokenizer = train_tokenizer(CORPUS, size)
    assert len(tokenizer) == tokenizer.vocab_size == size
    assert sorted(tokenizer.get_vocab().values()) == list(range(size))


def test_special_tokens_come_first(tokenizer):
    assert tokenizer.convert_ids_to_tokens(range(4)) == list(SPECIAL_TOKENS)
    assert [tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id] == [
        0,
        1,
        2,
        3,
    ]
    assert tokenizer.mask_token is None
    masked = train_tokenizer(CORPUS, 300, mask_token=True)
    assert masked.mask_token_id == 4 and masked.mask_token == MASK_TOKEN
    assert masked(f"a {MASK_TOKEN} b").input_ids.count(4) == 1


def test_too_small_too_large_and_empty():
    with pytest.raises(ValueError, match="at least 260"):
        train_tokenizer(CORPUS, 259)
    with pytest.raises(ValueError, match="corpus is empty"):
        train_tokenizer([], 300)
    with pytest.raises(ValueError, match="corpus is empty"):
        train_tokenizer(iter(["", ""]), 300)
    with pytest.raises(TypeError, match=r"\[text\]"):
        train_tokenizer("one string", 300)
    with pytest.raises(TypeError, match="NoneType"):
        train_tokenizer(["a", None], 300)
    with pytest.raises(ValueError, match="lower min_frequency") as caught:
        train_tokenizer(CORPUS, 100_000)
    # The size it names can indeed be had.
    reachable = int(str(caught.value).split("only ")[1].split()[0])
    assert len(train_tokenizer(CORPUS, reachable)) == reachable


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_hard_text_survives_unchanged(tokenizer, reloaded, text):
    """Reported in huggingface/transformers#44915 and huggingface/tokenizers#830."""
    for candidate in (tokenizer, reloaded):
        assert decode(candidate, candidate(text).input_ids) == text
        assert candidate.batch_decode([candidate(text).input_ids], skip_special_tokens=True) == [text]


def test_any_text_survives_unchanged(tokenizer):
    generator = random.Random(0)
    # Surrogates are no characters of their own and cannot be encoded.
    planes = [(0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)]
    texts = [
        "".join(chr(generator.randint(*generator.choice(planes))) for _ in range(generator.randint(0, 20)))
        for _ in range(2000)
    ]
    for text, ids in zip(texts, tokenizer(texts).input_ids, strict=True):
        assert decode(tokenizer, ids) == text


@pytest.mark.parametrize("text", ["</s>", "a<s>b</s>", "<pad><unk>", "<mask>"])
def test_special_tokens_spelled_out_are_plain_text_where_the_call_says_so(tokenizer, reloaded, text):
    for candidate in (tokenizer, reloaded):
        ids = candidate(text, split_special_tokens=True).input_ids
        assert ids[-1] == 2 and min(ids[:-1]) > 3
        assert decode(candidate, ids) == text


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("add_eos", [False, True])
def test_special_tokens_stand_exactly_once(add_bos, add_eos, tmp_path):
    """Reported in huggingface/tokenizers#1643 and huggingface/transformers#33998."""
    trained = train_tokenizer(CORPUS, 330, add_bos=add_bos, add_eos=add_eos)
    trained.save_pretrained(tmp_path / "saved")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    smaller = trained.train_new_from_iterator([CORPUS[:50]], 280)
    smaller_from_loaded = loaded.train_new_from_iterator([CORPUS[:50]], 280)
    smaller.save_pretrained(tmp_path / "smaller")
    loaded_smaller = AutoTokenizer.from_pretrained(tmp_path / "smaller")

    before, after = [1] * add_bos, [2] * add_eos
    for candidate in (trained, loaded, smaller, smaller_from_loaded, loaded_smaller):
        plain = candidate("the dog", add_special_tokens=False).input_ids
        other = candidate("a tree", add_special_tokens=False).input_ids
        assert min(plain + other) > 3
        assert candidate("the dog").input_ids == before + plain + after
        assert candidate("the dog", "a tree").input_ids == before + plain + after + before + other + after
        both = candidate("the dog", text_target="a tree")
        assert both.input_ids == before + plain + after and both.labels == before + other + after
        assert candidate("").input_ids == before + after
        # Text that was decoded with its special tokens does not get them twice.
        again = candidate(candidate.decode(before + plain + after), split_special_tokens=True).input_ids
        assert again.count(1) == add_bos and again.count(2) == add_eos
        assert max(max(ids) for ids in candidate(CORPUS).input_ids) < len(candidate)
        assert list(candidate("the dog")) == ["input_ids", "attention_mask"]
    assert len(smaller) == len(smaller_from_loaded) == len(loaded_smaller) == 280


def test_same_corpus_same_file_in_another_process(tokenizer):
    """Also under another seed for Python's hashes, which orders sets differently."""
    code = (
        "import sys, json; from vanilla_transformer.tokenization import *; texts = json.load(sys.stdin);"
        "sys.stdout.write(train_tokenizer(texts, 330).backend_tokenizer.to_str());"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(CORPUS),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "1"},
    )
    assert result.stdout == tokenizer.backend_tokenizer.to_str()


def test_loads_without_this_package(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "TokenizersBackend"
    code = (
        "import sys; sys.modules['vanilla_transformer'] = None\n"
        "from transformers import AutoTokenizer; t = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "print(t('the dog 🙂 </s>', text_target=' x').data)"
    )
    result = subprocess.run(
        [warm_python(), "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert result.stdout.strip() == str(tokenizer("the dog 🙂 </s>", text_target=" x").data)


def test_lowercase():
    tokenizer = train_tokenizer(CORPUS, 300, lowercase=True)
    assert decode(tokenizer, tokenizer("ÄPFEL Und Birnen").input_ids) == "äpfel und birnen"


def test_length_limit_is_saved(tmp_path):
    train_tokenizer(CORPUS, 300, model_max_length=7).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.model_max_length == 7
    ids = loaded("the dog sees the house by the river", truncation=True).input_ids
    assert len(ids) == 7 and ids[-1] == 2


def test_separate_vocabularies():
    source, target = train_tokenizer(CORPUS[:500], 290), train_tokenizer(CORPUS[500:], 300)
    assert len(source) == 290 and len(target) == 300
    assert target("小狗").input_ids != source("小狗").input_ids


def test_characters(tmp_path):
    texts = ["To be,\n\nor  not\u2028to be 🙂", "ß"]
    tokenizer = train_character_tokenizer(texts, add_eos=True)
    assert len(tokenizer) == len(SPECIAL_TOKENS) + len(set("".join(texts)))
    tokenizer.save_pretrained(tmp_path)
    for candidate in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        for text in texts:
            ids = candidate(text).input_ids
            assert len(ids) == len(text) + 1 and ids[-1] == 2
            assert decode(candidate, ids) == text
        assert candidate("~", add_special_tokens=False).input_ids == [candidate.unk_token_id]
    assert tokenizer.get_vocab() == train_character_tokenizer(reversed(texts), add_eos=True).get_vocab()


def test_lowercase_characters_are_all_known():
    """Lowering a character may give two, or another than Python's own lowering does."""
    text = "İSTANBUL ΟΔΟΣ"
    tokenizer = train_character_tokenizer([text], lowercase=True)
    assert tokenizer.unk_token_id not in tokenizer(text).input_ids


def test_words_are_what_stands_between_spaces(tmp_path):
    texts = ["(S (NP XX )NP XX )S", "(S XX )S", "tʃ ː"]
    train_word_tokenizer(texts, 100).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == [
        *SPECIAL_TOKENS, "XX", "(S", ")S", "(NP", ")NP", "tʃ", "ː",
    ]  # fmt: skip
    for text in texts:
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    assert tokenizer.tokenize("XX (VP  XX") == ["XX", "<unk>", "XX"]
    assert len(train_word_tokenizer(texts, 6)) == 6
    assert len(train_word_tokenizer(texts, 100, min_frequency=3)) == 5


def test_wordpiece_is_exact_and_the_same_for_the_same_texts(tmp_path):
    texts = ["the lower the newer", "lowest newest widest", "the wider , the slower : it 's slow ."] * 3
    tokenizer = train_wordpiece_tokenizer(texts, 45)
    assert len(tokenizer) == 45
    assert train_wordpiece_tokenizer(iter(reversed(texts)), 45).get_vocab() == tokenizer.get_vocab()
    for text in texts:
        encoded = tokenizer(text)
        assert tokenizer.decode(encoded["input_ids"], skip_special_tokens=True) == text
        pieces = tokenizer.tokenize(text)
        # every word begins with a piece without ##, and no other piece does
        assert sum(not piece.startswith("##") for piece in pieces) == len(text.split())
    assert "the" in tokenizer.tokenize("the lowest")
    assert tokenizer.tokenize("it 日本") == [*tokenizer.tokenize("it"), "<unk>"]
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)(texts)["input_ids"] == tokenizer(texts)["input_ids"]
    assert train_wordpiece_tokenizer(["The THE"] * 3, 9, lowercase=True).tokenize("ThE") == ["the"]


@pytest.mark.parametrize(("size", "sentence"), [(10, "is too small: .* need 17"), (900, "The texts give only")])
def test_wordpiece_of_an_impossible_size_is_refused(size, sentence):
    with pytest.raises(ValueError, match=sentence):
        train_wordpiece_tokenizer(["the lower the newer", "lowest newest widest"] * 3, size)


def letters(count, seed=0):
    draw = random.Random(seed)
    return "".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(count))


@pytest.mark.parametrize("absurd", [letters(1_000_000), " " * 1_000_000 + "a", "?!" * 500_000, "1" * 1_000_000])
def test_a_word_of_a_million_letters_does_not_shape_the_tokenizer(absurd):
    started = time.process_time()
    with_it = train_tokenizer([*CORPUS, f"{CORPUS[0]} {absurd}", CORPUS[1]], 300)
    assert time.process_time() - started < 10
    without = train_tokenizer([*CORPUS, CORPUS[0], CORPUS[1]], 300)
    assert with_it.get_vocab() == without.get_vocab()


def test_words_of_absurd_length_are_counted(caplog):
    logging.enable_propagation()  # to where pytest listens
    with caplog.at_level("WARNING"):
        train_wordpiece_tokenizer([*CORPUS, letters(201), f"a {letters(300)} b"], 150)
    assert "2 words of absurd length were left out of the training" in caplog.text
    assert without_long_words("a" * 1000 + " b", "bpe") == ("a" * 1000 + " b", 0)
    assert without_long_words("a" * 1001 + " b", "bpe") == ("  b", 1)
    assert without_long_words("a" * 1001, "characters") == ("a" * 1001, 0)


@pytest.mark.parametrize("train", [train_tokenizer, train_wordpiece_tokenizer])
def test_sizes_that_would_end_the_process_are_refused(train):
    with pytest.raises(ValueError, match="vocab_size=1000000000 must be at most 2,000,000"):
        train(CORPUS, 10**9)
    with pytest.raises(ValueError, match="min_frequency=-1 must not be negative"):
        train(CORPUS, 300, min_frequency=-1)
