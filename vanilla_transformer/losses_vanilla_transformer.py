# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""The loss: smoothed cross entropy, also without ever holding all logits, and the labels it is taken of.

A checkpoint carries this file to the Hub beside the modeling file, so it imports only torch and transformers.

Shapes: (B, T) a batch, N its tokens in one row, D hidden_size, V vocabulary.
"""

from functools import wraps
from typing import Any

import torch
from torch import nn

IGNORED = -100  # label of positions that are no part of the loss, as everywhere in transformers


def uniform_share(label_smoothing: float, form: str, vocabulary: int) -> float:
    """How much of the target distribution is spread over all V tokens, for either convention of label smoothing.

    Args:
        label_smoothing: epsilon.
        form: `"uniform"`: epsilon/V for every token, the right one included (Szegedy et al. 2016,
            `torch.nn.functional.cross_entropy`). `"others"`: epsilon/(V-1) for every wrong token (tensor2tensor, fairseq),
            which is the same distribution with epsilon * V/(V-1).
        vocabulary: V.
    """
    return label_smoothing if form == "uniform" or vocabulary == 1 else label_smoothing * vocabulary / (vocabulary - 1)


def smoothed_cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    label_smoothing: float = 0.0,
    num_items_in_batch: torch.Tensor | int | None = None,
    label_smoothing_form: str = "uniform",
) -> torch.Tensor:
    """Cross entropy per token against a target in which `label_smoothing` is spread evenly (section 5.4).

    Args:
        logits: (..., V), any float type; the loss is computed in float32.
        labels: (...), ids aligned with `logits`; positions with -100 do not count.
        label_smoothing: epsilon of the paper, 0 to 1.
        num_items_in_batch: what the sum is divided by. `None`: the number of labels here. `Trainer` gives the number
            in all accumulated batches and processes, which makes 8 = 2 x 4.
        label_smoothing_form: see [`uniform_share`].

    Returns:
        A scalar; 0 where no label counts.
    """
    labels = labels.to(logits.device).reshape(-1)
    rows = logits.float().reshape(-1, logits.shape[-1])
    share = uniform_share(label_smoothing, label_smoothing_form, logits.shape[-1])

    def summed(share: float) -> torch.Tensor:
        return nn.functional.cross_entropy(rows, labels, ignore_index=IGNORED, reduction="sum", label_smoothing=share)

    # with few classes the share can be above 1, which torch refuses; the loss is linear in it
    total = summed(share) if share <= 1 else summed(0.0) + share * (summed(1.0) - summed(0.0))
    return loss_per_item(total, (labels != IGNORED).sum(), num_items_in_batch)


def loss_per_item(
    total: torch.Tensor, counted: torch.Tensor | int, num_items_in_batch: torch.Tensor | int | None
) -> torch.Tensor:
    """A summed loss over the number of items it is shared by; without labels 0, not 0/0."""
    items = counted if num_items_in_batch is None else num_items_in_batch
    items = items.to(total.device) if torch.is_tensor(items) else torch.tensor(items, device=total.device)
    return total / items.clamp(min=1)


def check_labels(labels: torch.Tensor | None, shape: torch.Size) -> None:
    """Refuse labels that are not one for each position (B, T).

    Raises:
        ValueError: naming both shapes.
    """
    if labels is not None and labels.shape != shape:
        raise ValueError(f"labels of shape {tuple(labels.shape)} do not fit {shape[0]} rows of {shape[1]} positions.")


def ignore_padding_labels(labels: torch.Tensor | None, mask: Any) -> torch.Tensor | None:
    """`labels` (B, T) without those at padding: in training no layer computes what stands there.

    Args:
        mask: (B, T), or longer by what is cached; anything but a 2D mask says nothing of padding.
    """
    if labels is None or not isinstance(mask, torch.Tensor) or mask.dim() != 2 or mask.shape[0] != labels.shape[0]:
        return labels
    return labels.masked_fill(mask[:, -labels.shape[1] :].to(labels.device) == 0, IGNORED)


def ignore_labels_without_context(
    labels: torch.Tensor, mask: Any, starts: torch.Tensor | None = None, shifted: bool = False
) -> torch.Tensor:
    """`labels` (B, T) of a decoder-only model without those that no token of the same sequence comes before.

    With a mask, neither padding nor what stands behind it is a target: the last token of a row is not trained to be
    followed by padding, and the first one not to follow it. So right padding, left padding and none have the same loss.

    Args:
        mask: as for [`ignore_padding_labels`].
        starts: (B, T), true for the first token of each of several sequences in a row.
        shifted: `labels` hold at each position the token that follows it, and not the token itself.
    """
    if starts is not None and not shifted:
        labels = labels.masked_fill(starts[:, -labels.shape[1] :].to(labels.device), IGNORED)
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or mask.shape[0] != labels.shape[0]:
        return labels
    is_token = mask[:, -labels.shape[1] :].to(labels.device) != 0
    # both the token that is predicted and the one that predicts it
    other = is_token.roll(-1 if shifted else 1, dims=1)
    other[:, -1 if shifted else 0] = True
    return labels.masked_fill(~(is_token & other), IGNORED)


def let_trainer_count_labels() -> None:
    """Let transformers' `Trainer` count as items of a batch the labels that take part in the loss, once for all.

    It divides sums of losses by the number of all labels but -100 in all accumulated batches, before a model has seen any
    of them. Those that a mask leaves out would make the loss too small. Other models are counted as before.
    """
    from transformers import Trainer

    count = Trainer._get_num_items_in_batch
    if hasattr(count, "__wrapped__"):
        return

    @wraps(count)
    def count_items(self: Any, batch_samples: list, *args: Any, **kwargs: Any) -> Any:
        counted_labels = getattr(self.model, "counted_labels", None)
        # a loss function of the caller's, or the smoother of `Trainer`, sees the labels as they are
        own_loss = self.compute_loss_func is None and self.label_smoother is None
        if counted_labels is not None and own_loss:
            batch_samples = [{**batch, **counted_labels(batch)} for batch in batch_samples]
        return count(self, batch_samples, *args, **kwargs)

    Trainer._get_num_items_in_batch = count_items


def shift_right(
    labels: torch.Tensor, start_token_id: int | None, pad_token_id: int | None, starts: torch.Tensor | None = None
) -> torch.Tensor:
    """Decoder inputs for teacher forcing: `labels` one place later, behind the start token.

    Args:
        labels: (B, T), with -100 where there is no label; left unchanged.
        start_token_id: first token of every row.
        pad_token_id: stands in for -100.
        starts: (B, T), true where a sequence begins, beside the first place of each row.

    Raises:
        ValueError: where an id is needed and missing.
    """
    if start_token_id is None:
        raise ValueError(
            "decoder inputs cannot be built from labels: set decoder_start_token_id (or bos_token_id) in the config."
        )
    shifted = labels.roll(1, dims=-1)
    shifted[:, 0] = start_token_id
    if starts is not None:
        shifted = shifted.masked_fill(starts[:, -labels.shape[1] :].to(shifted.device), start_token_id)
    if pad_token_id is not None:
        return shifted.masked_fill(shifted == IGNORED, pad_token_id)
    if (shifted == IGNORED).any():
        raise ValueError("decoder inputs cannot be built from labels with -100: set pad_token_id in the config.")
    return shifted
