"""Packed batches: several pairs, or texts, one after another in a single row, without padding.

Positions start anew with each, by which the models of this package (and transformers' own decoders) keep them apart:
attention is block-diagonal, and loss and gradients are those of the same pairs in padded rows.
"""

from dataclasses import dataclass
from typing import Any

import torch

from vanilla_transformer.losses_vanilla_transformer import IGNORED, shift_right

__all__ = ["PackPairs", "PackRows"]


def _row(values: list[list[int]]) -> torch.Tensor:
    """(1, N) from lists one after another."""
    return torch.cat([torch.as_tensor(value, dtype=torch.long) for value in values]).unsqueeze(0)


def _positions(values: list[list[int]]) -> torch.Tensor:
    """(1, N), counted from 0 in each list."""
    return torch.cat([torch.arange(len(value)) for value in values]).unsqueeze(0)


@dataclass
class PackPairs:
    """A collator for encoder-decoders: rows with `input_ids` and `labels` to one row of all sources and one of all targets.

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
        begun = [shift_right(_row([target]), self.start_token_id, self.pad_token_id)[0] for target in targets]
        return {
            "input_ids": _row(sources),
            "position_ids": _positions(sources),
            "decoder_input_ids": torch.cat(begun).unsqueeze(0),
            "decoder_position_ids": _positions(targets),
            "labels": _row(targets),
        }


@dataclass
class PackRows:
    """A collator for the other architectures: rows of lists, each as long as its `input_ids`, to one row.

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
        batch = {name: _row([row[name] for row in rows]) for name in names}
        batch["position_ids"] = _positions([row["input_ids"] for row in rows])
        if self.causal and "labels" in batch:
            batch["labels"] = batch["labels"].masked_fill(batch["position_ids"] == 0, IGNORED)
        return batch
