"""The output projection and its loss without all logits at once.

Shapes: N labels, D hidden_size, V vocabulary.
"""

from typing import Any

import torch
from torch import nn

from vanilla_transformer.losses_vanilla_transformer import IGNORED, loss_per_item, uniform_share
from vanilla_transformer.positions_vanilla_transformer import compute_dtype

__all__ = ["chunked_cross_entropy"]


# torch 2.13's linear_cross_entropy in chunks, with smoothing as its cross entropy plus a linear term, is as fast with 256
# rows at once (0.95 to 1.24 of this speed; 0.43 by its own choice of rows) and as exact, but takes more memory (398 MiB, not
# 281, for 2,048 tokens of 512 and 37,000 words), has no gradients of gradients, and is not in torch 2.6 to 2.12.
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
