"""The tokens of a tokenizer as a list by id, as other runtimes hold them."""

from transformers import PreTrainedTokenizerBase

from vanilla_transformer.export.errors import ExportError

__all__ = ["token_list"]


def token_list(tokenizer: PreTrainedTokenizerBase, size: int) -> list[str]:
    """Return as many tokens as the model has, in the order of their ids; ids without a token get a name of their own.

    Raises:
        ExportError: for a tokenizer with tokens that the model lacks.
    """
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    if max(by_id, default=-1) >= size:
        raise ExportError(f"the tokenizer has {max(by_id) + 1} tokens and the model {size}; save them together again.")
    tokens = [by_id.get(index, f"<unused_{index}>") for index in range(size)]
    if len(set(tokens)) < size:
        raise ExportError("the tokenizer has a token named <unused_N> where the model has ids without a token.")
    return tokens
