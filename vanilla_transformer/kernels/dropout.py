"""Dropout on a CPU from fewer random bits."""

from typing import Any

import torch
from torch import nn
from transformers.utils.import_utils import is_tracing

__all__ = ["dropout"]


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
