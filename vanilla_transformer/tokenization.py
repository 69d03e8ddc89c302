"""Tokenizers trained on a run's own text.

Four kinds, all fast tokenizers of the `tokenizers` library in transformers' generic class, `PreTrainedTokenizerFast`, which
loads a saved folder where this package is not installed. (So does `AutoTokenizer`, but beside a model it asks about the code
that the model's config.json names.)

- `train_tokenizer`: byte-level BPE. Every string in any script survives encoding and decoding unchanged.
- `train_wordpiece_tokenizer`: whole words and their pieces, words being what stands between spaces; for taggers, which
  must know where a word begins. Decoding gives single spaces.
- `train_character_tokenizer`: one token per Unicode character, for character language models.
- `train_word_tokenizer`: what stands between spaces is one token: sounds, brackets of trees, words of a closed vocabulary.

The special tokens have fixed ids: `<pad>` 0, `<s>` 1, `</s>` 2, `<unk>` 3, and `<mask>` 4 where it is asked for.
For separate source and target vocabularies, train one tokenizer on each side.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

__all__ = [
    "LONGEST_WORD",
    "MASK_TOKEN",
    "SPECIAL_TOKENS",
    "TOKENIZER_KINDS",
    "TokenizerKind",
    "train_character_tokenizer",
    "train_tokenizer",
    "train_tokenizer_of_kind",
    "train_word_tokenizer",
    "train_wordpiece_tokenizer",
    "without_long_words",
]

logger = logging.get_logger(__name__)

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
"""The tokens every tokenizer of this package starts with; the position is the id."""

MASK_TOKEN = "<mask>"

LARGEST_VOCABULARY = 2_000_000
"""The trainers reserve memory for as many entries as are asked for, and the process ends where there is none."""

LONGEST_WORD = 1000
"""Characters of the longest run of letters, of spaces or of signs that a byte-level tokenizer is trained on."""

LONGEST_WORDPIECE = 200
"""Characters of the longest word that WordPiece cuts into pieces; longer ones are `<unk>`."""

_LONG_WORDS = {
    "bpe": re.compile(rf"\w{{{LONGEST_WORD + 1},}}|\s{{{LONGEST_WORD + 1},}}|[^\w\s]{{{LONGEST_WORD + 1},}}"),
    "wordpiece": re.compile(rf"\S{{{LONGEST_WORDPIECE + 1},}}"),
}


def without_long_words(text: str, kind: str) -> tuple[str, int]:
    """Put a space in the place of each word of absurd length, from which a tokenizer would learn nothing of use.

    The time of training grows with the square of the length of a word, and its pieces fill the vocabulary.

    Args:
        kind: of the tokenizer; for "characters" no word is too long.

    Returns:
        The text, and how many words were left out.
    """
    if kind not in _LONG_WORDS or len(text) <= LONGEST_WORDPIECE:
        return text, 0
    return _LONG_WORDS[kind].subn(" ", text)


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    *,
    min_frequency: int = 2,
    lowercase: bool = False,
    split_digits: bool = False,
    add_bos: bool = False,
    add_eos: bool = True,
    mask_token: bool = False,
    model_max_length: int | None = None,
    show_progress: bool = False,
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with exactly `vocab_size` entries, special tokens included.

    The same texts in the same order give the same tokenizer, byte for byte. Decoding gives back the text exactly as it
    was, double spaces and line breaks included; only `lowercase=True` loses something.

    Args:
        texts: sentences or documents, read once; runs of more than `LONGEST_WORD` letters, spaces or signs are left out.
        vocab_size: number of entries: the special tokens, the 256 bytes, and one entry per merge.
        min_frequency: a pair of neighbouring symbols seen less often than this is not merged.
        lowercase: lower the case of everything before it is split.
        split_digits: make every digit a token of its own, so that numbers are read and written digit by digit.
        add_bos: put `<s>` before each text that is encoded with special tokens.
        add_eos: put `</s>` after each such text.
        mask_token: also make a `<mask>` token, for masked language models.
        model_max_length: the length, in tokens, above which the tokenizer warns and to which `truncation=True` cuts;
            None for no limit.
        show_progress: draw the progress bars of `tokenizers`.

    Returns:
        A tokenizer whose calls give `input_ids` and `attention_mask`. As everywhere, a special token spelled out in a text is
        read as that token, which chat templates and TRL rely on. For texts of others, which could end themselves early that
        way, give `split_special_tokens=True` in the call, as all calls of this package do.

    Raises:
        ValueError: there is no text, or the texts cannot fill `vocab_size` entries, or the bytes do not fit into it.
        TypeError: `texts` is one string or holds something else than strings.
    """
    specials = _special_tokens(mask_token)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(specials) + len(alphabet)
    _check_size(vocab_size, min_frequency)
    if vocab_size < smallest:
        raise ValueError(
            f"vocab_size={vocab_size} is too small for a byte-level tokenizer: {len(specials)} special tokens and "
            f"{len(alphabet)} bytes need {smallest}, so ask for at least {smallest}."
        )

    backend = Tokenizer(models.BPE())
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level]) if split_digits else byte_level
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=specials,
        initial_alphabet=alphabet,
        show_progress=show_progress,
    )
    backend.train_from_iterator(_checked(texts, "bpe"), trainer=trainer)
    reached = backend.get_vocab_size()
    if reached != vocab_size:
        raise ValueError(_too_few(reached, vocab_size, min_frequency))
    return _wrap(backend, add_bos=add_bos, add_eos=add_eos, mask_token=mask_token, model_max_length=model_max_length)


def train_wordpiece_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    *,
    min_frequency: int = 2,
    lowercase: bool = False,
    add_bos: bool = False,
    add_eos: bool = True,
    mask_token: bool = False,
    model_max_length: int | None = None,
) -> PreTrainedTokenizerFast:
    """Train a WordPiece tokenizer with exactly `vocab_size` entries, special tokens included.

    Words are what stands between spaces, punctuation that touches them included. Pieces that continue a word begin
    with `##`. A word with a character that `texts` does not hold becomes `<unk>`. The arguments are those of
    `train_tokenizer`.

    The same texts give the same tokenizer, which the trainer of `tokenizers` does not promise for this kind: so pieces
    are found by its BPE, and the most frequent ones are taken, with all single characters.

    Raises:
        ValueError: there is no text, the texts cannot fill `vocab_size` entries, or their characters do not fit into it.
        TypeError: `texts` is one string or holds something else than strings.
    """
    _check_size(vocab_size, min_frequency)
    normalizer = normalizers.Lowercase() if lowercase else None
    words: Counter[str] = Counter()
    for text in _checked(texts, "wordpiece"):
        words.update((normalizer.normalize_str(text) if normalizer else text).split())

    # pieces of the words, which BPE finds
    finder = Tokenizer(models.BPE())
    finder.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=min_frequency, show_progress=False)
    finder.train_from_iterator((word for word, count in words.items() for _ in range(count)), trainer=trainer)
    merges = json.loads(finder.to_str())["model"]["merges"]
    parts = {"".join(pair): tuple(pair) for pair in reversed(merges)}
    # how often each comes, in what the words are cut into and in what that was merged from
    used: Counter[str] = Counter()
    inner: Counter[str] = Counter()
    characters = set()
    for word, count in words.items():
        characters.update([word[0], *(f"##{character}" for character in word[1:])])
        encoded = finder.encode(word)
        found = [(piece, start) for piece, (start, _) in zip(encoded.tokens, encoded.offsets, strict=True)]
        used.update({_marked(*each): count for each in found})
        inner.update({_marked(*each): count for each in _merged_from(found, parts)})

    # the vocabulary: all characters, and the most frequent pieces
    specials = _special_tokens(mask_token)
    entries = [*specials, *sorted(characters)]
    frequent: list[str] = []
    # what the words are cut into comes first; what that was merged from only fills up
    for pieces in (used, inner):
        more = set(pieces) - set(entries)
        frequent += sorted(more - set(frequent), key=lambda piece: (-pieces[piece], piece))
    if len(entries) > vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size} is too small: the special tokens and the characters of the texts, which begin a word or "
            f"continue one, need {len(entries)}, so ask for at least {len(entries)}."
        )
    entries += frequent[: vocab_size - len(entries)]
    if len(entries) < vocab_size:
        raise ValueError(_too_few(len(entries), vocab_size, min_frequency))
    backend = Tokenizer(
        models.WordPiece(
            {entry: number for number, entry in enumerate(entries)},
            unk_token="<unk>",
            max_input_chars_per_word=LONGEST_WORDPIECE,
        )
    )
    if normalizer:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(cleanup=False)
    backend.add_special_tokens(specials)
    return _wrap(backend, add_bos=add_bos, add_eos=add_eos, mask_token=mask_token, model_max_length=model_max_length)


def _marked(piece: str, start: int) -> str:
    return piece if start == 0 else f"##{piece}"


def _merged_from(found: list[tuple[str, int]], parts: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, int]]:
    """Yield what pieces that begin somewhere in a word were merged from, step by step, and where that begins."""
    todo = list(found)
    while todo:
        piece, start = todo.pop()
        if piece in parts:
            first, second = parts[piece]
            both = [(first, start), (second, start + len(first))]
            yield from both
            todo += both


def train_character_tokenizer(
    texts: Iterable[str],
    *,
    lowercase: bool = False,
    add_bos: bool = False,
    add_eos: bool = False,
    mask_token: bool = False,
    model_max_length: int | None = None,
) -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token per Unicode character of `texts`, ordered by code point after the special tokens.

    A character that `texts` does not hold becomes `<unk>`. The arguments are those of `train_tokenizer`.

    Raises:
        ValueError: there is no text.
        TypeError: `texts` is one string or holds something else than strings.
    """
    normalizer = normalizers.Lowercase() if lowercase else None
    characters: set[str] = set()
    for text in _checked(texts, "characters"):
        characters.update(normalizer.normalize_str(text) if normalizer else text)
    specials = _special_tokens(mask_token)
    vocabulary = {token: index for index, token in enumerate([*specials, *sorted(characters)])}

    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    if normalizer:
        backend.normalizer = normalizer
    # A class of both halves, since a dot does not match a line break.
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(specials)
    return _wrap(backend, add_bos=add_bos, add_eos=add_eos, mask_token=mask_token, model_max_length=model_max_length)


def train_word_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    *,
    min_frequency: int = 1,
    lowercase: bool = False,
    add_bos: bool = False,
    add_eos: bool = True,
    mask_token: bool = False,
    model_max_length: int | None = None,
) -> PreTrainedTokenizerFast:
    """Make a tokenizer whose tokens are what stands between spaces, the most frequent ones first.

    Others become `<unk>`. Decoding gives single spaces. The arguments are those of `train_tokenizer`, but that a closed
    vocabulary may be smaller than `vocab_size`.

    Raises:
        ValueError: there is no text.
        TypeError: `texts` is one string or holds something else than strings.
    """
    _check_size(vocab_size, min_frequency)
    normalizer = normalizers.Lowercase() if lowercase else None
    words: Counter[str] = Counter()
    for text in _checked(texts, "words"):
        words.update((normalizer.normalize_str(text) if normalizer else text).split())
    specials = _special_tokens(mask_token)
    if vocab_size <= len(specials):
        raise ValueError(
            f"vocab_size={vocab_size} is too small: ask for more than the {len(specials)} special tokens."
        )
    known = [word for word, count in words.items() if count >= min_frequency and word not in specials]
    known.sort(key=lambda word: (-words[word], word))
    vocabulary = {token: index for index, token in enumerate([*specials, *known[: vocab_size - len(specials)]])}

    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    if normalizer:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(specials)
    return _wrap(backend, add_bos=add_bos, add_eos=add_eos, mask_token=mask_token, model_max_length=model_max_length)


@dataclass(frozen=True)
class TokenizerKind:
    """How tokenizers of one kind are trained.

    Attributes:
        train: a function of texts and options.
        options: those that it has beside `lowercase` and the special tokens.
    """

    train: Callable[..., PreTrainedTokenizerFast]
    options: tuple[str, ...] = ()


TOKENIZER_KINDS = {
    "bpe": TokenizerKind(train_tokenizer, ("vocab_size", "min_frequency", "split_digits")),
    "wordpiece": TokenizerKind(train_wordpiece_tokenizer, ("vocab_size", "min_frequency")),
    "characters": TokenizerKind(train_character_tokenizer),
    "words": TokenizerKind(train_word_tokenizer, ("vocab_size", "min_frequency")),
}


def train_tokenizer_of_kind(
    kind: str,
    texts: Iterable[str],
    *,
    vocab_size: int,
    min_frequency: int = 2,
    split_digits: bool = False,
    **options: Any,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer of a kind in `TOKENIZER_KINDS` with those of the options that it has; see `train_tokenizer`."""
    given = {"vocab_size": vocab_size, "min_frequency": min_frequency, "split_digits": split_digits}
    chosen = TOKENIZER_KINDS[kind]
    return chosen.train(texts, **{name: given[name] for name in chosen.options}, **options)


def _too_few(reached: int, vocab_size: int, min_frequency: int) -> str:
    return (
        f"The texts give only {reached} entries, not the vocab_size={vocab_size} asked for: ask for {reached} or "
        f"fewer, train on more text, or lower min_frequency (now {min_frequency})."
    )


def _special_tokens(mask_token: bool) -> list[str]:
    return [*SPECIAL_TOKENS, MASK_TOKEN] if mask_token else list(SPECIAL_TOKENS)


def _check_size(vocab_size: int, min_frequency: int) -> None:
    if vocab_size > LARGEST_VOCABULARY:
        raise ValueError(f"vocab_size={vocab_size} must be at most {LARGEST_VOCABULARY:,}.")
    if min_frequency < 0:
        raise ValueError(f"min_frequency={min_frequency} must not be negative.")


def _checked(texts: Iterable[str], kind: str) -> Iterator[str]:
    """Yield the texts without words of absurd length; refuse what is no text, and the absence of any."""
    if isinstance(texts, str):
        raise TypeError("texts must be an iterable of strings, not one string: give [text].")
    empty, long_words = True, 0
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"texts must hold strings, but one entry is {text!r:.60} ({type(text).__name__}).")
        if text:
            empty = False
            text, found = without_long_words(text, kind)
            long_words += found
            yield text
    if long_words:
        logger.warning(f"{long_words:,} words of absurd length were left out of the training of the tokenizer.")
    if empty:
        raise ValueError("There is no text to train a tokenizer on: the corpus is empty.")


def _wrap(
    backend: Tokenizer, *, add_bos: bool, add_eos: bool, mask_token: bool, model_max_length: int | None
) -> PreTrainedTokenizerFast:
    pad, bos, eos, unk = SPECIAL_TOKENS
    options: dict[str, object] = {}
    if mask_token:
        options["mask_token"] = MASK_TOKEN
    if model_max_length is not None:
        options["model_max_length"] = model_max_length
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unk,
        # These two make transformers build the post-processor, here and again after `train_new_from_iterator`, from
        # the ids the tokens have at that time. A loaded tokenizer takes the one saved in tokenizer.json.
        add_bos_token=add_bos,
        add_eos_token=add_eos,
        clean_up_tokenization_spaces=False,
        padding_side="right",
        truncation_side="right",
        model_input_names=["input_ids", "attention_mask"],
        **options,
    )
