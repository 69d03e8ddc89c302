"""Whether fast decoding serves a model and a call of `generate()`; where not, the reason in words."""

from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from vanilla_transformer import modeling_vanilla_transformer as modeling

MODELS = (modeling.VanillaTransformerForConditionalGeneration, modeling.VanillaTransformerForCausalLM)
PARTS = {
    modeling.VanillaTransformerModel,
    modeling.VanillaTransformerEncoder,
    modeling.VanillaTransformerDecoder,
    modeling.VanillaTransformerDropout,
    modeling.VanillaTransformerLayer,
    modeling.VanillaTransformerAttention,
    modeling.VanillaTransformerFeedForward,
    modeling.VanillaTransformerLearnedPositions,
    modeling.VanillaTransformerPredictionHeadTransform,
    nn.Linear,
    nn.Embedding,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.Identity,
    nn.ModuleList,
}
INPUTS = {
    "attention_mask",
    "cache",
    "decoder_attention_mask",
    "decoder_position_ids",
    "encoder_outputs",
    "logits_to_keep",
    "position_ids",
    "use_cache",
}


def _is_own_hook(hook: Any) -> bool:
    """Whether a hook is one with which transformers collects attentions, which does nothing unless they are asked for."""
    return getattr(hook, "__module__", "") == "transformers.utils.output_capturing"


def reason_against_module(name: str, module: nn.Module, activations: set[type]) -> str | None:
    """Return why a module has to be called as it is; `None` where its weights say all."""
    if type(module) not in PARTS and type(module) not in activations and type(module) not in MODELS:
        return f"{name} is a {type(module).__name__}"
    for hooks in (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    ):
        if hooks and not all(map(_is_own_hook, hooks.values())):
            return f"{name or 'the model'} has hooks"
    if "forward" in vars(module) or module._compiled_call_impl is not None:
        return f"{name or 'the model'} has another forward or is compiled"
    return None


def reason_against_tensor(module: str, key: str, tensor: torch.Tensor) -> str | None:
    """Return why a weight cannot be read as it is; `None` where it can."""
    if type(tensor) not in (nn.Parameter, torch.Tensor) or tensor.is_inference() or not tensor.is_contiguous():
        return f"{module}.{key} is not a plain tensor"
    if tensor.dtype != torch.float32 or not tensor.is_cpu:
        return f"{module}.{key} is {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"
    return None


def examine_model(model: Any) -> tuple[str | None, list[torch.Tensor]]:
    """Return why a model cannot be served, or `None` where it can; and its parameters and buffers.

    This is part of every call, so it walks the modules by itself: several times faster than `named_modules()`.
    """
    tensors: list[torch.Tensor] = []
    if type(model) not in MODELS:
        return f"the model is a {type(model).__name__}", tensors
    if any(model.config.rope_parameters_of(kind)["rope_type"] == "dynamic" for kind in model.config.attention_kinds):
        return "rotary positions depend on the longest sequence", tensors
    if model.training:
        return "the model is in training mode", tensors
    if model.config._attn_implementation not in ("sdpa", "eager"):
        return f"attn_implementation is {model.config._attn_implementation!r}", tensors
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return "there are hooks on all modules", tensors
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on", tensors
    stacks = [getattr(model.model, side) for side in ("encoder", "decoder") if hasattr(model.model, side)]
    activations = {type(layer.feed_forward.activation) for stack in stacks for layer in stack.layers}
    waiting: list[tuple[str, nn.Module]] = [("", model)]
    seen: set[int] = set()  # as tied matrices are
    while waiting:
        name, module = waiting.pop()
        reason = reason_against_module(name, module, activations)
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                tensors.append(tensor)
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    reason = reason or reason_against_tensor(name, key, tensor)
        if reason is not None:
            return reason, tensors
        prefix = f"{name}." if name else ""
        waiting += [(prefix + key, part) for key, part in module._modules.items() if part is not None]
    return None, tensors


def reason_against_call(model: Any, config: Any, inputs: dict[str, Any]) -> str | None:
    """Return why a call cannot be served; `None` where it can.

    Args:
        config: the generation config, as `generate()` prepared it.
        inputs: for the model, as `generate()` prepared them.
    """
    if config.output_attentions or config.output_hidden_states:
        return "attentions or hidden states are asked for"
    # of an encoder-decoder they have been read by now
    served = INPUTS | {"inputs_embeds"} if model.config.is_encoder_decoder else INPUTS
    given = (name for name, value in inputs.items() if value is not None and value is not False)
    other = sorted(name for name in given if name not in served)
    if other:
        return f"{', '.join(other)} given"
    if not config.use_cache or config.cache_implementation is not None:
        return "another cache is asked for"
    if config.prefill_chunk_size is not None or config.compile_config is not None or config.low_memory:
        return "prefill_chunk_size, compile_config or low_memory is set"
    if config.is_assistant:
        return "the model assists another"
    cache = inputs.get("cache")
    caches: list[Any] = [cache]
    if isinstance(cache, EncoderDecoderCache):
        caches = [cache.self_attention_cache, cache.cross_attention_cache]
    if not all(type(c) is DynamicCache and c.get_seq_length() == 0 for c in caches):
        return "a cache is given"
    for name in ("attention_mask", "decoder_attention_mask"):
        mask = inputs.get(name)
        if mask is not None and (mask.dim() != 2 or not bool((mask != 0).any(-1).all())):
            return f"{name} is not of rows with tokens"
    prompt_mask = inputs.get("decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask")
    positions = inputs.get("decoder_position_ids" if model.config.is_encoder_decoder else "position_ids")
    if positions is not None:
        expected = torch.arange(positions.shape[-1]).expand_as(positions)
        if prompt_mask is not None:
            expected = (prompt_mask.long().cumsum(-1) - 1).clamp(min=0)
        is_token = slice(None) if prompt_mask is None else prompt_mask != 0
        if positions.shape != expected.shape or not torch.equal(positions[is_token], expected[is_token]):
            return "position ids are given"
    if prompt_mask is not None and not bool((prompt_mask[:, -1] != 0).all()):
        return "prompts are padded on the right"
    return None
