"""What a model costs to train: floating-point operations of a token, and the peak of memory."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import PreTrainedModel

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _of_attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _of_attention_backward(gradient: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


# PyTorch has formulas for the kernels of accelerators alone
_ON_CPU = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _of_attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _of_attention_backward,
}


def count_flops(model: PreTrainedModel, batch: dict[str, Any], tokens: int) -> int | None:
    """Count the floating-point operations of a training step, forward and backward, for each token of a batch.

    PyTorch counts those of matrix products, attention among them, as the model computes them; what is left out (norms,
    activations, the optimizer) is a small share. Weights and random numbers are as before.

    Args:
        model: not spread over processes.
        batch: of training data.
        tokens: in the batch, of both sides, without padding.

    Returns:
        Operations a token, a multiplication and an addition being two; None where PyTorch cannot count this model's.
    """
    was_training = model.training
    counter = FlopCounterMode(display=False, custom_mapping=_ON_CPU)
    try:
        model.train()
        inputs = {name: value.to(model.device) for name, value in batch.items() if torch.is_tensor(value)}
        with torch.random.fork_rng(), torch.enable_grad(), counter:
            model(**inputs).loss.backward()
    except (NotImplementedError, RuntimeError):
        return None
    finally:
        model.zero_grad(set_to_none=True)
        model.train(was_training)
    return round(counter.get_total_flops() / tokens) if tokens else None


def reset_peak_memory(device: str) -> None:
    """Let the peak of memory begin at what is in use now: of the accelerator, else of the process (on Linux)."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    elif sys.platform == "linux":
        try:
            _CLEAR.write_text("5")  # see proc_pid_clear_refs(5)
        except OSError:
            return  # the peak is then of the process since it began


def peak_memory(device: str) -> int | None:
    """Return the peak in megabytes: of tensors on the accelerator, else of the whole process; None where neither is known."""
    if device == "cuda":
        return round(torch.cuda.max_memory_allocated() / 1e6)
    try:
        lines = _STATUS.read_text().splitlines()
        return next((round(int(line.split()[1]) * 1024 / 1e6) for line in lines if line.startswith("VmHWM:")), None)
    except OSError:
        return None
