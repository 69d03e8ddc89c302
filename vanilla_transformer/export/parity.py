"""Compare an exported model with `generate()`: its scores, and the tokens that it generates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from vanilla_transformer.conversion.parity import TOLERANCE
from vanilla_transformer.export.errors import ExportError
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel

__all__ = [
    "NEW_TOKENS",
    "Parity",
    "Runtime",
    "check_parity",
    "gap_of_choices",
    "random_rows",
    "written_by_generate",
]

TIE = 1e-3
"""Two next tokens whose log-probabilities differ by less are a tie, which rounding may decide."""

NEW_TOKENS = 32
"""Written behind each row."""

SAME_SHARE = 0.995
"""Share of the texts for which an exact export writes the same tokens, ties aside."""

LENGTHS = (1, 2, 3, 5, 8, 13, 21)
"""Of the random rows that are compared, as far as the model has positions for them."""

Rows = list[list[int]]


class Runtime(Protocol):
    """An exported model, loaded again.

    Attributes:
        name: for the parity report.
        is_exact: whether it computes in float32, so that differences are rounding.
    """

    name: str
    is_exact: bool

    def largest_difference(self, model: VanillaTransformerPreTrainedModel, rows: Rows) -> float:
        """Return the largest difference of what the model says of these rows, relative where it is above 1."""

    def write(self, rows: Rows, new_tokens: int) -> Rows | None:
        """Return what greedy search writes behind each row, without the end token; None for an encoder."""


@dataclass(frozen=True)
class Parity:
    """How far an exported model is from the model.

    Attributes:
        name: of the runtime.
        difference: the largest of logits or log-probabilities.
        texts: how many were written by both; 0 for an encoder.
        same: of these, how many are the same token by token.
        ties: how many more differ first where two tokens are as probable.
    """

    name: str
    difference: float
    texts: int = 0
    same: int = 0
    ties: int = 0

    def __str__(self) -> str:
        said = f"{self.name}: largest difference of scores {self.difference:.2g}"
        if self.texts:
            said += f"; greedy: {self.same} of {self.texts} texts the same tokens"
            said += f", {self.ties} more but for a tie" if self.ties else ""
        return said


def check_parity(
    model: VanillaTransformerPreTrainedModel, runtime: Runtime, rows: Rows, new_tokens: int = NEW_TOKENS
) -> Parity:
    """Measure how far an exported model is from `generate()`.

    Args:
        model: in float32 and evaluation mode.
        rows: token ids, without padding.
        new_tokens: written behind each.

    Raises:
        ExportError: where one that computes in float32 scores or writes something else.
    """
    difference = runtime.largest_difference(model, rows)
    written = runtime.write(rows, new_tokens)
    if written is None:
        parity = Parity(runtime.name, difference)
    else:
        expected = written_by_generate(model, rows, new_tokens)
        same = [one == other for one, other in zip(expected, written, strict=True)]
        ties = sum(
            _is_tie(model, row, one, other)
            for row, one, other, is_same in zip(rows, expected, written, same, strict=True)
            if not is_same
        )
        parity = Parity(runtime.name, difference, len(rows), sum(same), ties)
    is_right = parity.difference <= TOLERANCE and parity.same + parity.ties >= SAME_SHARE * parity.texts
    if runtime.is_exact and not is_right:
        raise ExportError(
            f"the exported model does not compute the same as the model ({parity}); nothing was written."
        )
    return parity


def random_rows(model: VanillaTransformerPreTrainedModel, count: int = 28, seed: int = 0) -> Rows:
    """Return rows of random tokens of several lengths, none of which is special; those of an encoder-decoder end in EOS."""
    config = model.config
    special = {config.pad_token_id, config.bos_token_id, config.decoder_start_token_id}
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    ordinary = torch.tensor([token for token in range(config.vocab_size) if token not in special | set(ends)])
    longest = config.max_position_embeddings // 2 if config.position_encoding == "learned" else max(LENGTHS)
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for number in range(count):
        length = min(LENGTHS[number % len(LENGTHS)], longest)
        row = ordinary[torch.randint(len(ordinary), (length,), generator=generator)].tolist()
        rows.append(row + [ends[0]] if config.is_encoder_decoder and ends[0] is not None else row)
    return rows


@torch.inference_mode()
def written_by_generate(model: VanillaTransformerPreTrainedModel, rows: Sequence[list[int]], new_tokens: int) -> Rows:
    """Return what greedy `generate()` writes behind each row, without the end token."""
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    written: Rows = [[] for _ in rows]
    for length in sorted({len(row) for row in rows}):
        places = [place for place, row in enumerate(rows) if len(row) == length]
        ids = torch.tensor([rows[place] for place in places])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), num_beams=1, do_sample=False, max_new_tokens=new_tokens
        )
        output = output[:, 1 if model.config.is_encoder_decoder else length :]
        for place, tokens in zip(places, output.tolist(), strict=True):
            stop = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
            written[place] = tokens[:stop]
    return written


@torch.inference_mode()
def gap_of_choices(
    model: VanillaTransformerPreTrainedModel, row: list[int], one: list[int], other: list[int]
) -> float | None:
    """Return by how much the model prefers the token of `one` to that of `other` where the two outputs differ first.

    Args:
        row: that they were written behind.
        one, other: without the end token.

    Returns:
        The difference of log-probabilities; None where the two are the same as far as both go.
    """
    end = model.generation_config.eos_token_id
    end = end[0] if isinstance(end, list) else end
    one, other = [*one, end], [*other, end]
    place = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if place is None:
        return None
    before = torch.tensor([one[:place]], dtype=torch.long)
    if model.config.is_encoder_decoder:
        start = torch.tensor([[model.config.start_token_id]])
        logits = model(torch.tensor([row]), decoder_input_ids=torch.cat([start, before], dim=1)).logits
    else:
        logits = model(torch.cat([torch.tensor([row]), before], dim=1)).logits
    scores = logits[0, -1].float().log_softmax(-1)
    return float(scores[one[place]] - scores[other[place]])


def _is_tie(model: VanillaTransformerPreTrainedModel, row: list[int], one: list[int], other: list[int]) -> bool:
    """Return whether two outputs differ first where the model finds both tokens as probable."""
    gap = gap_of_choices(model, row, one, other)
    return gap is None or abs(gap) < TIE  # none: one of them was only stopped earlier by its length
