"""The tokenizers of a model that is converted: copied, or made of the vocabularies of fairseq and OpenNMT-py."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from vanilla_transformer.conversion.weight_mapping import ConversionError
from vanilla_transformer.loading import (
    TARGET_TOKENIZER,
    LoadingError,
    Source,
    has_target_tokenizer,
    has_tokenizer,
    load_tokenizer,
)
from vanilla_transformer.utils.log import Log

__all__ = ["FAIRSEQ_SPECIAL", "OPENNMT_SPECIAL", "copy_tokenizers", "fairseq_dictionary", "word_tokenizer"]


# ---------------------------------------------------------------------- tokenizers of transformers and of this package


def copy_tokenizers(
    source: Source, folder: Path, *, split: bool | None, log: Log, trust_remote_code: bool = False
) -> bool:
    """Save the tokenizer of a model, and that of its target side, beside the converted one.

    Their class stays, so that they load by themselves.

    Args:
        source: of the model.
        split: one tokenizer with a vocabulary for each side becomes two; None for where the vocabularies differ.

    Returns:
        Whether one became two.

    Raises:
        ConversionError: for a tokenizer that cannot be loaded.
    """
    if not has_tokenizer(source):
        log(f"{source} has no tokenizer, so neither has the converted model.")
        return False
    for subfolder in ("", TARGET_TOKENIZER):
        if subfolder and not has_target_tokenizer(source):
            continue
        try:
            tokenizer = load_tokenizer(source, subfolder, trust_remote_code=trust_remote_code)
        except ImportError as error:
            raise ConversionError(
                f"{str(error).rstrip('.')}, or convert a copy of the folder without the files of its tokenizer."
            ) from error
        except LoadingError as error:
            raise ConversionError(f"the tokenizer of {source} cannot be loaded: {error}") from error
        sides = None if subfolder or split is False else _one_for_each_side(tokenizer)
        if sides and (split or sides[0].get_vocab() != sides[1].get_vocab()):
            sides[0].save_pretrained(folder)
            sides[1].save_pretrained(folder / TARGET_TOKENIZER)
            return True
        tokenizer.save_pretrained(folder / subfolder)
    return False


def _one_for_each_side(
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase] | None:
    """Take apart a tokenizer that encodes with one vocabulary and decodes with another: FSMT's, and one kind of Marian's.

    Returns:
        A tokenizer of the same class for the source side, and one for the target side, each of which does both with its
        own; None for other tokenizers.
    """
    kind = type(tokenizer).__name__
    if kind != "FSMTTokenizer" and not (kind == "MarianTokenizer" and tokenizer.separate_vocabs):
        return None
    with TemporaryDirectory() as folder:
        tokenizer.save_vocabulary(folder)

        def side(language: str | None, vocabulary: str, pieces: str) -> PreTrainedTokenizerBase:
            words, parts = f"{folder}/{vocabulary}", f"{folder}/{pieces}"
            own: dict[str, Any]
            if kind == "FSMTTokenizer":
                own = {"langs": [language] * 2, "src_vocab_file": words, "tgt_vocab_file": words, "merges_file": parts}
            else:
                own = {"source_lang": language, "target_lang": language, "vocab": words}
                own |= {"source_spm": parts, "target_spm": parts, "target_vocab_file": None, "separate_vocabs": False}
            return type(tokenizer)(**{**tokenizer.init_kwargs, **own})

        if kind == "FSMTTokenizer":
            source = side(tokenizer.src_lang, "vocab-src.json", "merges.txt")
            return source, side(tokenizer.tgt_lang, "vocab-tgt.json", "merges.txt")
        source = side(tokenizer.source_lang, "vocab.json", "source.spm")
        return source, side(tokenizer.target_lang, "target_vocab.json", "target.spm")


# ------------------------------------------------------------------------------ vocabularies of fairseq and OpenNMT-py

FAIRSEQ_SPECIAL = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
"""In the order of their ids."""

OPENNMT_SPECIAL = {"unk_token": "<unk>", "pad_token": "<blank>", "bos_token": "<s>", "eos_token": "</s>"}


def fairseq_dictionary(path: str | Path) -> list[str]:
    """Return the tokens of a dictionary file of fairseq, the special ones first; the place is the id."""
    tokens = list(FAIRSEQ_SPECIAL.values())
    path = Path(path)
    if not path.is_file():
        raise ConversionError(f"there is no dictionary {path}; name a file such as dict.de.txt.")
    # only line feeds end lines there, and some tokens hold other separators
    with path.open(encoding="utf-8", newline="\n") as stream:
        for number, line in enumerate(stream, start=1):
            token, _, count = line.rstrip().removesuffix(" #fairseq:overwrite").rpartition(" ")
            if not token or not count.isdigit():
                raise ConversionError(f"{path}, line {number}: {line.rstrip()!r:.60} is not a token and its count.")
            tokens.append(token)
    return tokens


def word_tokenizer(tokens: list[str], special: dict[str, str], *, add_eos: bool) -> PreTrainedTokenizerFast:
    """Return a tokenizer that splits at spaces and knows these tokens, whose places are their ids.

    Args:
        special: names of the special tokens in transformers, and how they are written here.
        add_eos: end every text with the token that ends sentences.

    Raises:
        ConversionError: for a token that is there twice.
    """
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        twice = next(token for number, token in enumerate(tokens) if vocabulary[token] != number)
        raise ConversionError(f"the vocabulary holds {twice!r} twice.")
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=special["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    present = {name: token for name, token in special.items() if token in vocabulary}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        add_bos_token=False,
        add_eos_token=add_eos,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **present,
    )
