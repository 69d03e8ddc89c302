"""The tokenizers of a model that is converted, saved beside the converted one."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from vanilla_transformer.generation.translate import TARGET_TOKENIZER, has_target_tokenizer

from .links import ConversionError

__all__ = ["copy_tokenizers"]

# any of them makes a tokenizer; where there is none, transformers would make one without a vocabulary
TOKENIZER_FILES = (
    "tokenizer_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "vocab-src.json",
    "spiece.model",
    "source.spm",
    "sentencepiece.bpe.model",
)


TOKENIZER_PACKAGES = ("sentencepiece", "sacremoses", "tiktoken", "protobuf")
"""What tokenizers of transformers need beside it."""


def copy_tokenizers(
    path: str, revision: str | None, folder: Path, *, split: bool | None, say: Callable[[str], Any]
) -> bool:
    """Save the tokenizer of a model, and that of its target side, beside the converted one.

    Their class stays, so that they load by themselves.

    Args:
        path: a folder, or an id on the Hub.
        split: one tokenizer with a vocabulary for each side becomes two; None for where the vocabularies differ.

    Returns:
        Whether one became two.

    Raises:
        ConversionError: for a tokenizer that cannot be loaded.
    """
    if not any(_has_file(path, name, revision) for name in TOKENIZER_FILES):
        say(f"{path} has no tokenizer, so neither has the converted model.")
        return False
    for subfolder in ("", TARGET_TOKENIZER):
        if subfolder and not has_target_tokenizer(path, revision):
            continue
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, revision=revision, subfolder=subfolder)
        except ImportError as error:
            needed = [name for name in TOKENIZER_PACKAGES if name in str(error).lower()] or ["a package"]
            raise ConversionError(
                f"the tokenizer of {path} needs {' or '.join(needed)}, which is not installed; `pip install {needed[0]}`, or "
                "convert a copy of the folder without the files of its tokenizer."
            ) from error
        except Exception as error:  # tokenizers has nothing more special
            if type(error) is not Exception and not isinstance(
                error, (AttributeError, OSError, ValueError, KeyError, TypeError)
            ):
                raise
            raise ConversionError(f"the tokenizer of {path} cannot be loaded: {error}") from error
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
    """FSMT's tokenizer, and Marian's with separate vocabularies, encode with one and decode with another vocabulary.

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


def _has_file(path: str, name: str, revision: str | None) -> bool:
    try:
        return cached_file(path, name, revision=revision) is not None
    except OSError:
        return False
