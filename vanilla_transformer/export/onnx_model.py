"""Models of this package as ONNX files in the layout that transformers.js and Optimum read.

    onnx/encoder_model.onnx, onnx/decoder_model_merged.onnx    encoder-decoder; the decoder with its cache branch
    onnx/model.onnx                                            decoder-only (with cache) and encoder-only
    config.json                                                of a model type that they know, for names and sizes alone

Files of quantized weights have a suffix: `_quantized` for int8, `_fp16` for half precision.
"""

import copy
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vanilla_transformer.export.errors import ExportError
from vanilla_transformer.export.onnx_graphs import (
    decoder_graphs,
    encoder_graph,
    head_graph,
    language_model_graph,
    trace,
)
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel
from vanilla_transformer.utils.extras import needs

__all__ = ["FOLDER", "SUFFIXES", "file_name", "head_outputs", "write_onnx"]

FOLDER = "onnx"

SUFFIXES = {"float32": "", "float16": "_fp16", "int8": "_quantized"}
"""Of file names, by what the weights are stored as."""

LARGEST_FILE = 2**31 - 1
"""Bytes that a file of protocol buffers can have."""

HEADS = {
    "MaskedLM": (["logits"], "BertForMaskedLM"),
    "SequenceClassification": (["logits"], "BertForSequenceClassification"),
    "TokenClassification": (["logits"], "BertForTokenClassification"),
    "QuestionAnswering": (["start_logits", "end_logits"], "BertForQuestionAnswering"),
    "Model": (["last_hidden_state"], "BertModel"),
}
"""What encoders with each head write, and the class of transformers whose name stands for it in config.json."""


def file_name(graph: str, quantization: str) -> str:
    """Return the path of a graph in a folder, such as `onnx/encoder_model_quantized.onnx`."""
    return f"{FOLDER}/{graph}{SUFFIXES[quantization]}.onnx"


def head_outputs(model: VanillaTransformerPreTrainedModel) -> list[str]:
    """Return the names of what an encoder with its head writes."""
    return _head(model)[0]


def write_onnx(
    model: VanillaTransformerPreTrainedModel,
    folder: Path,
    quantization: str = "float32",
    *,
    with_attention: bool = False,
) -> None:
    """Write the ONNX files of a model, with `config.json` and `generation_config.json`, into a folder.

    Args:
        model: in float32 and evaluation mode.
        folder: that exists.
        quantization: one of `SUFFIXES`; int8 is dynamic, the activations are quantized as they come.
        with_attention: of an encoder-decoder, the decoder also writes its attention to the source.

    Raises:
        ExportError: for a model that is too large for a file.
        ImportError: where onnx, onnxscript or onnxruntime is not installed.
    """
    with needs("this export"):
        import onnx
        import onnxscript  # noqa: F401  (torch's exporter writes with it)

        from vanilla_transformer.export.onnx_merge import merge_steps
    # what a file can hold
    if model.config.architecture != "encoder-only" and not hasattr(model, "lm_head"):
        _head(model)  # says why not
    if model.config.value_dim != model.config.head_dim and model.config.architecture != "encoder-only":
        raise ExportError(
            f"ONNX files cannot hold value_head_dim={model.config.value_head_dim}, as their caches have keys and values of one "
            "width; train without."
        )
    if 4 * model.num_parameters() > LARGEST_FILE:
        raise ExportError(
            f"a model of {model.num_parameters():,} parameters does not fit into one ONNX file of 2 GiB; export a smaller one."
        )
    # graphs
    (folder / FOLDER).mkdir()
    config = model.config
    if config.is_encoder_decoder:
        decoder = copy.deepcopy(model) if with_attention else model
        if with_attention:
            decoder.set_attn_implementation("eager")  # the only one that has its weights
        first, following = (_stored(trace(graph), quantization) for graph in decoder_graphs(decoder, with_attention))
        graphs = {
            "encoder_model": _stored(trace(encoder_graph(model)), quantization),
            "decoder_model_merged": merge_steps(first, following),
        }
    elif config.architecture == "decoder-only":
        graphs = {"model": _stored(trace(language_model_graph(model)), quantization)}
    else:
        graphs = {"model": _stored(trace(head_graph(model, head_outputs(model))), quantization)}
    # files
    for name, graph in graphs.items():
        onnx.save(graph, folder / file_name(name, quantization))
    (folder / "config.json").write_text(json.dumps(_known_config(model), indent=2) + "\n", encoding="utf-8")
    if model.can_generate():
        model.generation_config.save_pretrained(folder)


def _stored(model: Any, quantization: str) -> Any:
    """Return a graph without the exporter's notes, its weights as they are to be stored."""
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    del model.graph.metadata_props[:], model.metadata_props[:], model.graph.value_info[:]
    if quantization == "float16":
        from onnxruntime.transformers.float16 import convert_float_to_float16
        from onnxruntime.transformers.onnx_model import OnnxModel

        halved = OnnxModel(convert_float_to_float16(model, keep_io_types=True, disable_shape_infer=True))
        halved.topological_sort()  # the conversion of inputs and outputs is put at the end
        return halved.model
    if quantization == "int8":
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        with TemporaryDirectory() as place:
            before, after = f"{place}/before.onnx", f"{place}/after.onnx"
            onnx.save(model, before)
            quantize_dynamic(before, after, weight_type=QuantType.QInt8, per_channel=True)
            return onnx.load(after)
    return model


def _head(model: VanillaTransformerPreTrainedModel) -> tuple[list[str], str]:
    name = type(model).__name__
    for kind, known in HEADS.items():
        if name.endswith(kind) and model.config.architecture == "encoder-only":
            return known
    raise ExportError(f"{name} with architecture={model.config.architecture!r} has no place among the ONNX layouts.")


def _known_config(model: VanillaTransformerPreTrainedModel) -> dict[str, Any]:
    """Return a configuration of a type that transformers.js and Optimum know, for the sizes of caches and the names of files.

    The graphs compute the model whatever this says; heads and widths are those of keys and values.
    """
    # of all architectures
    config = model.config
    heads, width = int(config.num_key_value_heads), int(config.head_dim)  # type: ignore[arg-type]
    known: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "is_encoder_decoder": config.is_encoder_decoder,
        "pad_token_id": config.pad_token_id,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "exported_from": "vanilla_transformer",
    }
    if config.is_encoder_decoder:
        return known | {
            "model_type": "marian",
            "architectures": ["MarianMTModel"],
            "decoder_vocab_size": config.output_vocab_size,
            "d_model": heads * width,
            "encoder_layers": config.num_hidden_layers,
            "decoder_layers": config.num_decoder_layers,
            "encoder_attention_heads": heads,
            "decoder_attention_heads": heads,
            "decoder_start_token_id": config.start_token_id,
        }
    # of one stack
    sizes = {"hidden_size": config.hidden_size, "num_hidden_layers": config.num_decoder_layers}
    if config.architecture == "decoder-only":
        return (
            known
            | sizes
            | {
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
                "num_attention_heads": config.num_attention_heads,
                "num_key_value_heads": heads,
                "head_dim": width,
            }
        )
    labels = {"id2label": config.id2label, "label2id": config.label2id}
    return known | sizes | labels | {"model_type": "bert", "architectures": [_head(model)[1]]}
