"""Collators: rows of tokens to a batch, padded, or packed one after another in a single row without padding.

Positions in a packed row start again with each pair or text, by which the models of this package (and transformers' own
decoders) keep them apart: attention is block-diagonal, and loss and gradients are those of the same rows padded.
"""

from dataclasses import dataclass
from typing import Any

import torch

from vanilla_transformer.losses_vanilla_transformer import IGNORED, shift_right

__all__ = ["PackingCollator", "PaddingCollator", "Seq2SeqPackingCollator"]


@dataclass
class PaddingCollator:
    """Pad each list of the rows on the right to the longest of the batch, and stack single numbers.

    Args:
        pad_token_id: fills `input_ids`; labels are filled with -100.
    """

    pad_token_id: int

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = {}
        for name, first in rows[0].items():
            values = [row[name] for row in rows]
            if isinstance(first, int):
                batch[name] = torch.tensor(values)
                continue
            filler = self.pad_token_id if name == "input_ids" else IGNORED
            tensors = [torch.as_tensor(value, dtype=torch.long) for value in values]
            batch[name] = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=filler)
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        positions = torch.arange(batch["input_ids"].shape[1])
        return {**batch, "attention_mask": (positions < lengths.unsqueeze(1)).long()}


@dataclass
class PackingCollator:
    """Put rows one after another in a single row, for all architectures but encoder-decoders.

    An `attention_mask` in the rows is left out: with one, positions would not tell the rows apart.

    Args:
        causal: the model compares each token with the label of the next, so the first label of each row, which follows
            another row's last token, must not count. Not where the data bring `shift_labels`.

    Raises:
        ValueError: for what is not as long as its row's `input_ids`, such as one label for all of them.
    """

    causal: bool = False

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        rows = sorted(rows, key=lambda row: len(row["input_ids"]))
        names = [name for name in rows[0] if name not in ("attention_mask", "position_ids")]
        for name in names:
            if any(not hasattr(row[name], "__len__") or len(row[name]) != len(row["input_ids"]) for row in rows):
                raise ValueError(f"rows whose {name} are not one for each of the input_ids cannot be packed.")
        batch = {name: _join([row[name] for row in rows]) for name in names}
        batch["position_ids"] = _positions([row["input_ids"] for row in rows])
        if self.causal and "labels" in batch:
            batch["labels"] = batch["labels"].masked_fill(batch["position_ids"] == 0, IGNORED)
        return batch


@dataclass
class Seq2SeqPackingCollator:
    """Put pairs into one row of all sources and one of all targets, for encoder-decoders.

    Pairs of like lengths stand together, so that a processor without variable-length kernels can attend to them at once.

    Args:
        start_token_id: begins each target's decoder inputs.
        pad_token_id: stands in these for -100 among the labels, as in padded rows; needed where there are any.

    Raises:
        ValueError: for an empty side, without which sources and targets could no longer be told into pairs.
    """

    start_token_id: int
    pad_token_id: int | None = None

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        rows = sorted(rows, key=lambda row: (len(row["labels"]), len(row["input_ids"])))
        for name in ("input_ids", "labels"):
            if any(len(row[name]) == 0 for row in rows):
                raise ValueError(f"a pair with empty {name} cannot be packed; leave it out of the data.")
        sources, targets = [row["input_ids"] for row in rows], [row["labels"] for row in rows]
        shifted = [shift_right(_join([target]), self.start_token_id, self.pad_token_id)[0] for target in targets]
        return {
            "input_ids": _join(sources),
            "position_ids": _positions(sources),
            "decoder_input_ids": _join(shifted),
            "decoder_position_ids": _positions(targets),
            "labels": _join(targets),
        }


def _join(values: list[Any]) -> torch.Tensor:
    """Return (1, N) from lists one after another."""
    return torch.cat([torch.as_tensor(value, dtype=torch.long) for value in values]).unsqueeze(0)


def _positions(values: list[Any]) -> torch.Tensor:
    """Return (1, N), counted from 0 in each list."""
    return torch.cat([torch.arange(len(value)) for value in values]).unsqueeze(0)
