"""The vocabularies of fairseq and OpenNMT-py as tokenizers that `AutoTokenizer` loads.

Text has to come as these models were trained on it: tokenised, cut into subwords, with spaces between.
"""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from vanilla_transformer.conversion.weight_mapping import ConversionError

__all__ = ["FAIRSEQ_SPECIAL", "OPENNMT_SPECIAL", "fairseq_dictionary", "word_tokenizer"]

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
