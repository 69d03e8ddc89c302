# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""Faster ways to compute what plain operations give as well: dropout, attention over sequences in a row, and the loss.

Shapes as in the modeling file; N all tokens of a batch in one row, M those that they attend to.
"""

from typing import Any

import torch
from torch import nn
from transformers.utils.import_utils import is_tracing

from .losses_vanilla_transformer import IGNORED, loss_per_item, uniform_share
from .sequences_vanilla_transformer import SequenceLengths


class _Dropout(torch.autograd.Function):
    """Dropout from 16 random bits an element, and one byte an element kept for the backward pass.

    torch 2.13 draws a double for each element on a CPU and keeps a float: at the width of a small model that is a tenth
    of a training step. The share that is dropped is p to the nearest 1/65536, and so is the scale that makes up for it.
    """

    @staticmethod
    def forward(states: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
        count, dropped = states.numel(), round(p * 2**16)
        draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        kept = (draws.view(torch.int16)[:count] >= dropped - 2**15).view(states.shape)
        return states * kept.to(states.dtype).mul_(2**16 / (2**16 - dropped)), kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, float], output: tuple[torch.Tensor, torch.Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])
        ctx.scale = 2**16 / (2**16 - round(inputs[1] * 2**16))

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor, _: Any) -> tuple[torch.Tensor, None]:
        (kept,) = ctx.saved_tensors
        return grad_output * kept.to(grad_output.dtype).mul_(ctx.scale), None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, _: Any) -> tuple[torch.Tensor, None]:
        (kept,) = ctx.saved_tensors
        return tangent * kept.to(tangent.dtype).mul_(ctx.scale), None


def dropout(states: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """`torch.nn.functional.dropout`, faster on a CPU."""
    # nearer to 1 than to the largest share that 16 bits can tell from it
    if not training or p == 0 or p > 1 - 2**-17 or states.device.type != "cpu" or is_tracing(states):
        return nn.functional.dropout(states, p=p, training=training)
    return _Dropout.apply(states, p)[0]


class VanillaTransformerDropout(nn.Dropout):
    """[`dropout`] with the share that a field of the configuration holds, also where that is changed later.

    A share that is set on the module, as by what looks for `nn.Dropout` to turn it off, holds until the field changes.
    """

    def __init__(self, config: Any, field: str):
        self.config, self.field = config, field
        super().__init__(getattr(config, field))

    @property
    def p(self) -> float:
        """Share of elements that is dropped."""
        share = getattr(self.config, self.field)
        return self._own if share == self._replaced else share

    @p.setter
    def p(self, value: float) -> None:
        self._own, self._replaced = value, getattr(self.config, self.field)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return dropout(states, self.p, self.training)


def variable_length_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    lengths: SequenceLengths,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention sequence by sequence: no padding, nothing computed to be thrown away.

    Args:
        module: the attention, whose heads and direction count.
        query: (1, H, N, d). key, value: (1, K, M, d). N and M are the sums of `lengths`.
        attention_mask: (1, 1 or H, L, L), of every sequence: true to attend, or added to the scores; `None` for neither.
        lengths: of the sequences, in tokens.

    Returns:
        (1, N, H, d), and no probabilities.
    """
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)  # (1, H, M, d)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    query, key, value = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))  # (N or M, H, d)
    blocks = lengths.blocks
    if blocks[0].key_index is not None:
        index = torch.cat([block.key_index for block in blocks if block.key_index is not None])
        key, value = key.index_select(0, index), value.index_select(0, index)
    # split, and not slices, each of which would fill a gradient of the whole row with zeros
    sizes = [(block.sequences * block.queries, block.sequences * block.keys) for block in blocks]
    query_sizes, key_sizes = (list(column) for column in zip(*sizes, strict=True))
    parts = zip(blocks, query.split(query_sizes), key.split(key_sizes), value.split(key_sizes), strict=True)
    outputs = []
    for block, *states in parts:
        mask = None if block.mask is None else block.mask.to(query.dtype)
        if attention_mask is not None:  # of self-attention, whose blocks have no masked keys
            mask = attention_mask[..., : block.queries, : block.keys]
        # (sequences, H, queries or keys, d) each
        queries, keys, values = (part.unflatten(0, (block.sequences, -1)).transpose(1, 2) for part in states)
        is_causal = module.is_causal and mask is None
        output = nn.functional.scaled_dot_product_attention(  # (sequences, H, queries, d)
            queries, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, scale=scaling
        )
        outputs.append(output.transpose(1, 2).flatten(0, 1))  # (sequences * queries, H, d)
    return torch.cat(outputs).unsqueeze(0), None


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
