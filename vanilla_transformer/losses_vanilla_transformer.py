# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""The loss: smoothed cross entropy (section 5.4), and the labels that it is taken of.

Shapes as in the modeling file: B batch, T sequence, V vocabulary.
"""

from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

IGNORED = -100  # label of positions that are no part of the loss, as everywhere in transformers


def uniform_share(label_smoothing: float, form: str, vocabulary: int) -> float:
    """Return how much of the target distribution is spread over all V tokens, for either convention of label smoothing.

    `"uniform"`: epsilon/V for every token, the right one included (Szegedy et al. 2016, PyTorch). `"others"`:
    epsilon/(V-1) for every wrong one (tensor2tensor, fairseq), the same distribution with epsilon * V/(V-1).
    """
    return label_smoothing if form == "uniform" or vocabulary == 1 else label_smoothing * vocabulary / (vocabulary - 1)


def smoothed_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    label_smoothing: float = 0.0,
    num_items_in_batch: Tensor | int | None = None,
    label_smoothing_form: str = "uniform",
) -> Tensor:
    """Return the cross entropy against targets of which `label_smoothing` is spread evenly; 0 where no label counts.

    Args:
        logits: (..., V), any float type; the loss is computed in float32.
        labels: (...), ids aligned with `logits`; positions with -100 do not count.
        label_smoothing, label_smoothing_form: epsilon of the paper, 0 to 1, and its form of [`uniform_share`].
        num_items_in_batch: what the sum is divided by; `None` for the number of labels here. `Trainer` gives the number
            in all accumulated batches and processes, which makes 8 = 2 x 4.
    """
    labels = labels.to(logits.device).reshape(-1)
    rows = logits.float().reshape(-1, logits.shape[-1])
    share = uniform_share(label_smoothing, label_smoothing_form, logits.shape[-1])

    def summed(share: float) -> Tensor:
        return nn.functional.cross_entropy(rows, labels, ignore_index=IGNORED, reduction="sum", label_smoothing=share)

    # with few classes the share can be above 1, which torch refuses; the loss is linear in it
    total = summed(share) if share <= 1 else summed(0.0) + share * (summed(1.0) - summed(0.0))
    return loss_per_item(total, (labels != IGNORED).sum(), num_items_in_batch)


def loss_per_item(total: Tensor, counted: Tensor | int, num_items_in_batch: Tensor | int | None) -> Tensor:
    """Return a summed loss over the number of items it is shared by; without labels 0, not 0/0."""
    items = counted if num_items_in_batch is None else num_items_in_batch
    items = items.to(total.device) if torch.is_tensor(items) else torch.tensor(items, device=total.device)
    return total / items.clamp(min=1)


def check_labels(labels: Tensor | None, shape: torch.Size) -> None:
    """Refuse labels that are not one for each position (B, T)."""
    if labels is not None and labels.shape != shape:
        raise ValueError(f"labels of shape {tuple(labels.shape)} do not fit {shape[0]} rows of {shape[1]} positions.")


def _tokens_of(labels: Tensor, mask: Any) -> Tensor | None:
    """Return which labels (B, T) stand at tokens, by a mask (B, past + T); `None` for another mask, or for other rows."""
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.shape[0] != labels.shape[0]:
        return None
    return mask[:, -labels.shape[1] :].to(labels.device) != 0


def ignore_padding_labels(labels: Tensor | None, mask: Any) -> Tensor | None:
    """Return labels (B, T) with -100 where the mask has padding: in training no layer computes what stands there."""
    if labels is None or (is_token := _tokens_of(labels, mask)) is None:
        return labels
    return labels.masked_fill(~is_token, IGNORED)


def ignore_labels_without_context(
    labels: Tensor, mask: Any, starts: Tensor | None = None, shifted: bool = False
) -> Tensor:
    """Return labels (B, T) of a decoder-only model with -100 where no token of the same sequence comes before.

    With a mask, neither padding nor what stands behind it is a target: the last token of a row is not trained to be
    followed by padding, and the first one not to follow it. So right padding, left padding and none have the same loss.

    Args:
        starts: (B, T), true for the first token of each of several sequences in a row.
        shifted: `labels` hold at each position the token that follows it, and not the token itself.
    """
    if starts is not None and not shifted:
        labels = labels.masked_fill(starts[:, -labels.shape[1] :].to(labels.device), IGNORED)
    if (is_token := _tokens_of(labels, mask)) is None:
        return labels
    # both the token that is predicted and the one that predicts it
    other = is_token.roll(-1 if shifted else 1, dims=1)
    other[:, -1 if shifted else 0] = True
    return labels.masked_fill(~(is_token & other), IGNORED)


def let_trainer_count_labels() -> None:
    """Let transformers' `Trainer` count as items of a batch the labels that take part in the loss, once for all.

    It divides sums by the number of all labels but -100 in all accumulated batches, before a model has seen any of them;
    those that a mask leaves out would make the loss too small. Other models are counted as before.
    """
    from transformers import Trainer

    count = Trainer._get_num_items_in_batch
    if hasattr(count, "__wrapped__"):
        return

    @wraps(count)
    def count_items(self: Any, batch_samples: list, *args: Any, **kwargs: Any) -> Any:
        counted_labels = getattr(self.model, "counted_labels", None)
        # a loss function of the caller's, or the smoother of `Trainer`, sees the labels as they are
        if counted_labels is not None and self.compute_loss_func is None and self.label_smoother is None:
            batch_samples = [{**batch, **counted_labels(batch)} for batch in batch_samples]
        return count(self, batch_samples, *args, **kwargs)

    Trainer._get_num_items_in_batch = count_items


def shift_right(
    labels: Tensor, start_token_id: int | None, pad_token_id: int | None, starts: Tensor | None = None
) -> Tensor:
    """Return decoder inputs for teacher forcing: labels (B, T) one place later, behind the start token, -100 as padding.

    Args:
        starts: (B, T), true where a sequence begins, beside the first place of each row.
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
