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


def compute_dtype(states: torch.Tensor) -> torch.dtype:
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
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        smoothing: float,
        dtype: torch.dtype,
        wanted: tuple[bool, bool],
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """Return the sum, and gradients of `hidden` (N, D), `weight` (V, D), `bias` (V), of `labels` (N), none ignored.

        Args:
            smoothing: as [`uniform_share`] has it.
            dtype: of matrix products. Sums are kept in float32 or better.
            wanted: whether the gradients of states and of weights are needed; the others are `None`.
        """
        projection, vocabulary = weight.to(dtype), weight.shape[0]
        exact = torch.promote_types(dtype, torch.float32)
        total = hidden.new_zeros((), dtype=exact)
        hidden_grad = torch.empty_like(hidden) if wanted[0] else None
        weight_grad = torch.zeros_like(weight, dtype=exact) if wanted[1] else None
        bias_grad = torch.zeros_like(bias, dtype=exact) if wanted[1] and bias is not None else None
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
            if hidden_grad is not None:
                hidden_grad[chunk] = grad @ projection
            if weight_grad is not None and dtype == exact:
                weight_grad.addmm_(grad.t(), rows)
            elif weight_grad is not None:
                weight_grad += grad.t() @ rows
        if smoothing and hidden_grad is not None:
            hidden_grad -= (smoothing / vocabulary * weight.sum(0)).to(hidden.dtype)
        if smoothing and weight_grad is not None:
            weight_grad -= smoothing / vocabulary * hidden.sum(0, dtype=exact)
            bias_grad = None if bias_grad is None else bias_grad - smoothing / vocabulary * len(hidden)
        return total, hidden_grad, weight_grad, bias_grad

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        hidden, weight, bias, labels, *ctx.options, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(grad for grad in output[1:] if grad is not None))
        ctx.save_for_backward(hidden, weight, bias, labels, *output[1:])

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor | None, *_: Any) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, labels, *grads = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if grad_output is None:
            return (None,) * 7
        if torch.is_grad_enabled() or any(need and grad is None for need, grad in zip(needed, grads, strict=True)):
            # gradients of gradients are wanted, which takes all logits
            return (*_ChunkedCrossEntropy._differentiable(ctx, hidden, weight, bias, labels, grad_output), *[None] * 4)
        scaled = [
            (grad * grad_output).to(given.dtype) if need else None
            for need, grad, given in zip(needed, grads, (hidden, weight, bias), strict=True)
        ]
        return (*scaled, *[None] * 4)

    @staticmethod
    def _differentiable(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        grad_output: torch.Tensor,
    ) -> list[torch.Tensor | None]:
        """Return the same gradients, of ordinary operations, which can be differentiated again."""
        smoothing, dtype = ctx.options
        exact = torch.promote_types(dtype, torch.float32)
        with torch.enable_grad():
            # views, since states may depend on the same weights, and their part of the gradient is not ours
            hidden, weight = hidden.view_as(hidden), weight.view_as(weight)
            bias = None if bias is None else bias.view_as(bias)
            inputs = (hidden, weight, bias)
            logits = nn.functional.linear(hidden.to(dtype), weight.to(dtype)).to(exact)
            logits = logits if bias is None else logits + bias
            log_probabilities = logits.log_softmax(-1)
            total = -(1 - smoothing) * log_probabilities.gather(-1, labels.unsqueeze(-1)).sum()
            total = total - smoothing * log_probabilities.mean(-1).sum()
            needed: list[Any] = [given for given, need in zip(inputs, ctx.needs_input_grad, strict=False) if need]
            found = iter(torch.autograd.grad(total, needed, grad_output, create_graph=True))
        return [next(found) if need else None for need in ctx.needs_input_grad[:3]]


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
    dtype = compute_dtype(hidden)
    smoothing = uniform_share(label_smoothing, label_smoothing_form, weight.shape[0])
    # its matrix products are in the dtype that they are given
    with torch.autocast(hidden.device.type, enabled=False):
        # weights that are not trained, as under adapters, cost no gradient
        wanted = (torch.is_grad_enabled(), torch.is_grad_enabled() and weight.requires_grad)
        total, *_ = _ChunkedCrossEntropy.apply(hidden, weight, bias, labels, smoothing, dtype, wanted)
    return loss_per_item(total, len(counted), num_items_in_batch)


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
