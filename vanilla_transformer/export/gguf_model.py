"""Decoder-only models as a GGUF file, which llama.cpp and what is built on it run.

llama.cpp computes a fixed set of architectures. The model is first converted to the class of transformers whose architecture it
knows, Llama for RMS norms and GPT-2 for layer norms; that conversion names the field in the way of a model that neither can hold.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.conversion.convert import to_transformers
from vanilla_transformer.conversion.weight_mapping import ConversionError
from vanilla_transformer.export.errors import ExportError
from vanilla_transformer.export.vocabulary import token_list
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel
from vanilla_transformer.utils.extras import needs
from vanilla_transformer.utils.log import no_log

__all__ = ["FILE_NAME", "QUANTIZATIONS", "write_gguf"]

FILE_NAME = "model.gguf"

QUANTIZATIONS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "Q8_0"}
"""How matrices can be stored, by GGUF's names; vectors stay in float32."""

GELU_BY_TANH = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")
"""The activation of llama.cpp's GPT-2, by transformers' names."""

TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
"""Weights that GPT-2 of transformers holds as (in, out)."""


def write_gguf(
    model: VanillaTransformerPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    quantization: str = "float32",
) -> None:
    """Write `model.gguf` with weights, sizes and tokenizer into a folder.

    Args:
        model: decoder-only with a language head, in float32.
        tokenizer: byte-level BPE, which llama.cpp has, too.
        folder: that exists.
        quantization: one of `QUANTIZATIONS`; rows that blocks of 32 do not divide are stored as float16 instead of int8.

    Raises:
        ExportError: for what GGUF cannot hold, naming the field in the way.
        ImportError: where the package gguf is not installed.
    """
    with needs("this export"):
        import gguf
    # sizes and tokenizer
    source = _convert(model)
    architecture = source.config.model_type
    writer = gguf.GGUFWriter(folder / FILE_NAME, architecture)
    _add_sizes(writer, source)
    _add_tokenizer(writer, model, tokenizer)
    # weights
    stored_as = getattr(gguf.GGMLQuantizationType, QUANTIZATIONS[quantization])
    writer.add_file_type(
        getattr(gguf.LlamaFileType, {"float32": "ALL_F32"}.get(quantization, f"MOSTLY_{stored_as.name}"))
    )
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, architecture.upper()), source.config.num_hidden_layers)
    for name, tensor in source.state_dict().items():
        if name == "lm_head.weight" and source.config.tie_word_embeddings:
            continue
        array, kind = _layout(name, tensor, source.config).numpy(), stored_as
        is_matrix = array.ndim > 1 and not name.endswith("wpe.weight")  # positions are added to float32 states
        if not is_matrix:
            kind = gguf.GGMLQuantizationType.F32
        elif kind == gguf.GGMLQuantizationType.Q8_0 and array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = gguf.GGMLQuantizationType.F16
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if known is None:
            raise ExportError(f"GGUF has no name for the weight {name} of {type(source).__name__}.")
        writer.add_tensor(known, _stored(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _convert(model: VanillaTransformerPreTrainedModel) -> PreTrainedModel:
    """Return the model as Llama or GPT-2 of transformers.

    Raises:
        ExportError: where neither can hold it, or llama.cpp computes something else for that class.
    """
    config = model.config
    if config.architecture != "decoder-only" or not hasattr(model, "lm_head"):
        raise ExportError(
            f"GGUF holds language models that continue text (architecture='decoder-only'); {type(model).__name__} with "
            f"architecture={config.architecture!r} has no place there, export it to onnx or ctranslate2."
        )
    family = "llama" if config.norm_type == "rmsnorm" else "gpt2"
    if family == "gpt2" and config.hidden_act not in GELU_BY_TANH:
        raise ExportError(
            f"GGUF cannot hold this model; in the way is hidden_act={config.hidden_act!r}, as llama.cpp's GPT-2 has "
            f"{GELU_BY_TANH[0]!r} alone."
        )
    obstacles = {
        "attention_bias": family == "llama" and config.attention_bias,
        "mlp_bias": family == "llama" and config.mlp_bias,
        "qk_norm": config.qk_norm is not None,
        "value_head_dim": config.value_dim != config.head_dim,
        "rotary_scaling": config.rotary_scaling is not None,
        "partial_rotary_factor": config.partial_rotary_factor != 1,
    }
    if in_the_way := [f"{name}={getattr(config, name)!r}" for name, is_one in obstacles.items() if is_one]:
        raise ExportError(
            f"GGUF cannot hold this model; in the way is {', '.join(in_the_way)}, which the {family} of llama.cpp does not have."
        )
    try:
        return to_transformers(model, family, log=no_log)
    except ConversionError as error:
        raise ExportError(f"GGUF takes models as Llama or GPT-2 is, and {error}") from error


def _add_sizes(writer: Any, source: PreTrainedModel) -> None:
    config = source.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    if config.model_type == "gpt2":
        writer.add_feed_forward_length(config.n_inner)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def _layout(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """Return a weight as llama.cpp has it: (out, in), halves of rotated pairs side by side."""
    if name.endswith(TRANSPOSED):
        return tensor.T.contiguous()
    heads = {"q_proj.weight": config.num_attention_heads}
    if config.model_type == "llama":
        heads["k_proj.weight"] = config.num_key_value_heads
    count = heads.get(".".join(name.split(".")[-2:]))
    if count is None:
        return tensor
    return tensor.unflatten(0, (count, 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()


def _stored(array: np.ndarray, kind: Any) -> np.ndarray:
    import gguf

    return array if kind == gguf.GGMLQuantizationType.F32 else gguf.quants.quantize(array, kind)


def _add_tokenizer(writer: Any, model: VanillaTransformerPreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Add a byte-level BPE tokenizer.

    Raises:
        ExportError: for another kind, and for steps before or after it that llama.cpp does not have.
    """
    from gguf import TokenType

    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    splitting = _splitting(backend)
    if splitting is None:
        raise ExportError(
            "GGUF cannot hold this tokenizer: it takes byte-level BPE that keeps the case of letters (tokenizer.kind=bpe, "
            "without lowercase)."
        )
    # tokens
    tokens = token_list(tokenizer, model.config.vocab_size)
    special = set(tokenizer.all_special_ids)
    known = len(tokenizer)
    kinds = [
        TokenType.CONTROL if index in special else TokenType.NORMAL if index < known else TokenType.UNUSED
        for index in range(len(tokens))
    ]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in backend["model"]["merges"]]
    # special tokens, and what is put around a text
    ends = model.generation_config.eos_token_id
    end = ends[0] if isinstance(ends, list) else ends
    if end is None:
        raise ExportError("the model's generation settings name no eos_token_id, without which nothing ends.")
    begins = tokenizer("a", verbose=False)["input_ids"][:1] == [tokenizer.bos_token_id]
    # llama.cpp's names for them
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(end if tokenizer.bos_token_id is None else tokenizer.bos_token_id)
    writer.add_eos_token_id(end)
    if tokenizer.unk_token_id is not None:
        writer.add_unk_token_id(tokenizer.unk_token_id)
    if tokenizer.pad_token_id is not None:
        writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_add_bos_token(begins)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def _splitting(backend: dict[str, Any]) -> str | None:
    """Return llama.cpp's name for how a tokenizer cuts a text into words, None where it has none."""
    before = backend["pre_tokenizer"] or {}
    steps = before.get("pretokenizers", [before])
    byte_level = {"add_prefix_space": False, "use_regex": True}
    is_byte_level = steps[-1].get("type") == "ByteLevel" and byte_level.items() <= steps[-1].items()
    if backend["model"]["type"] != "BPE" or backend["normalizer"] is not None or not is_byte_level:
        return None
    if len(steps) == 1:
        return "gpt-2"
    digits = {"type": "Digits", "individual_digits": True}
    return "smollm" if steps[:-1] == [digits] else None
