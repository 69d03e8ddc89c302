# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""The loss: smoothed cross entropy, also without ever holding all logits, and the labels it is taken of.

A checkpoint carries this file to the Hub beside the modeling file, so it imports only torch.

Shapes: (B, T) a batch, N its tokens in one row, D hidden_size, V vocabulary.
"""

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


def dtype_of_products(states: torch.Tensor) -> torch.dtype:
    """That in which matrices are multiplied: under autocast another than that of the states."""
    device = states.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Output projection and smoothed cross entropy in one, a few rows of logits at a time.

    The gradients are taken while a chunk's probabilities are at hand, so the (N, V) logits never exist at once and
    nothing is computed twice. With q the smoothed target, d loss / d logits = softmax(logits) - q, and the uniform part
    of q is added to the gradients after the loop, where it costs one row instead of N.
    """

    LOGITS, ROWS = 5 * 2**20, 256  # at once; fewer rows would slow the matrix products down

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        smoothing: float,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Of `hidden` (N, D), `weight` (V, D), `bias` (V) and `labels` (N), none ignored, in `dtype`.

        `smoothing` is that of [`uniform_share`]. Sums are kept in float32 or better.
        """
        projection, vocabulary = weight.to(dtype), weight.shape[0]
        exact = torch.promote_types(dtype, torch.float32)
        total = hidden.new_zeros((), dtype=exact)
        hidden_grad, weight_grad = torch.empty_like(hidden), torch.zeros_like(weight, dtype=exact)
        bias_grad = None if bias is None else torch.zeros_like(bias, dtype=exact)
        count = max(_ChunkedCrossEntropy.LOGITS // vocabulary, _ChunkedCrossEntropy.ROWS)
        for start in range(0, len(hidden), count):
            chunk = slice(start, start + count)
            rows, right = hidden[chunk].to(dtype), labels[chunk].unsqueeze(-1)
            logits = (rows @ projection.t()).to(exact)  # (n, V)
            logits = logits if bias is None else logits + bias
            probabilities = logits.softmax(-1)
            # the likeliest token's probability is at least 1/V, so its logarithm is safe; that of the right one may be 0
            log_sum = logits.amax(-1, keepdim=True) - probabilities.amax(-1, keepdim=True).log()  # (n, 1)
            total += (log_sum - (1 - smoothing) * logits.gather(-1, right)).sum()
            if smoothing:
                total -= smoothing * logits.mean(-1).sum()
            # from here on the gradient of the logits, but for the uniform part
            probabilities.scatter_add_(-1, right, torch.full_like(right, smoothing - 1, dtype=exact))
            if bias_grad is not None:
                bias_grad += probabilities.sum(0)
            grad = probabilities.to(dtype)
            hidden_grad[chunk] = grad @ projection
            if dtype == exact:
                weight_grad.addmm_(grad.t(), rows)
            else:
                weight_grad += grad.t() @ rows
        if smoothing:
            hidden_grad -= (smoothing / vocabulary * weight.sum(0)).to(hidden.dtype)
            weight_grad -= smoothing / vocabulary * hidden.sum(0, dtype=exact)
            bias_grad = None if bias_grad is None else bias_grad - smoothing / vocabulary * len(hidden)
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        ctx.dtype = weight.dtype
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_grad, weight_grad, bias_grad = ctx.saved_tensors
        bias_grad = None if bias_grad is None else (bias_grad * grad_output).to(ctx.dtype)
        return hidden_grad * grad_output, (weight_grad * grad_output).to(ctx.dtype), bias_grad, None, None, None


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    label_smoothing: float = 0.0,
    num_items_in_batch: torch.Tensor | int | None = None,
    label_smoothing_form: str = "uniform",
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """[`smoothed_cross_entropy`] of `hidden @ weight.T + bias` without ever holding all logits, at labels only.

    Args:
        hidden: (..., D), states before the output projection.
        weight: (V, D), the output projection.
        bias: (V), its bias, if it has one.
        labels, label_smoothing, num_items_in_batch, label_smoothing_form: as for [`smoothed_cross_entropy`].
    """
    labels = labels.to(hidden.device).reshape(-1)
    counted = (labels != IGNORED).nonzero().squeeze(-1)
    hidden, labels = hidden.reshape(-1, hidden.shape[-1])[counted], labels[counted]
    dtype = dtype_of_products(hidden)
    smoothing = uniform_share(label_smoothing, label_smoothing_form, weight.shape[0])
    # its matrix products are in the dtype that they are given
    with torch.autocast(hidden.device.type, enabled=False):
        total = _ChunkedCrossEntropy.apply(hidden, weight, bias, labels, smoothing, dtype)
    return loss_per_item(total, len(counted), num_items_in_batch)


def labels_of_tokens(labels: torch.Tensor | None, mask: Any) -> torch.Tensor | None:
    """`labels` (B, T) without those at padding: in training no layer computes what stands there.

    Args:
        mask: (B, T), or longer by what is cached; anything but a 2D mask says nothing of padding.
    """
    if labels is None or not isinstance(mask, torch.Tensor) or mask.dim() != 2:
        return labels
    return labels.masked_fill(mask[:, -labels.shape[1] :].to(labels.device) == 0, IGNORED)


def shift_right(labels: torch.Tensor, start_token_id: int | None, pad_token_id: int | None) -> torch.Tensor:
    """Decoder inputs for teacher forcing: `labels` one place later, behind the start token.

    Args:
        labels: (B, T), with -100 where there is no label; left unchanged.
        start_token_id: first token of every row.
        pad_token_id: stands in for -100.

    Raises:
        ValueError: where an id is needed and missing.
    """
    if start_token_id is None:
        raise ValueError(
            "decoder inputs cannot be built from labels: set decoder_start_token_id (or bos_token_id) in the config."
        )
    shifted = labels.roll(1, dims=-1)
    shifted[:, 0] = start_token_id
    if pad_token_id is not None:
        return shifted.masked_fill(shifted == IGNORED, pad_token_id)
    if (shifted == IGNORED).any():
        raise ValueError("decoder inputs cannot be built from labels with -100: set pad_token_id in the config.")
    return shifted
