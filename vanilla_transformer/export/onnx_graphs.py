"""The graphs that make a model in ONNX: what each reads and writes, traced by torch's exporter with sizes that vary.

Names and order of inputs and outputs are those that transformers.js and Optimum look for.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel

__all__ = ["Graph", "decoder_graphs", "encoder_graph", "head_graph", "language_model_graph", "trace"]

Axes = dict[int, Any]


@dataclass(frozen=True)
class Graph:
    """What torch's exporter needs to know of a graph.

    Attributes:
        module: computes a tuple of tensors from the inputs, in order.
        inputs: by name, an example of each and the axes that vary, by their names.
        outputs: names, in order.
    """

    module: nn.Module
    inputs: dict[str, tuple[torch.Tensor, dict[int, str]]]
    outputs: list[str]


class _Encoder(nn.Module):
    def __init__(self, model: VanillaTransformerPreTrainedModel):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.model.base_model.encoder(input_ids, attention_mask).last_hidden_state,)


class _Head(nn.Module):
    """A model that reads a text and says something of it: masked tokens, classes, answers."""

    def __init__(self, model: VanillaTransformerPreTrainedModel, outputs: list[str]):
        super().__init__()
        self.model, self.outputs = model, outputs

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        names = ("input_ids", "attention_mask", "token_type_ids")
        output = self.model(**dict(zip(names, inputs, strict=False)))
        return tuple(output[name] for name in self.outputs)


class _FirstStep(nn.Module):
    """The first tokens of a target: keys and values of the source are computed."""

    def __init__(self, model: VanillaTransformerPreTrainedModel, with_attention: bool):
        super().__init__()
        self.model, self.with_attention = model, with_attention

    def forward(
        self, encoder_attention_mask: torch.Tensor, input_ids: torch.Tensor, encoder_hidden_states: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        output = self.model(
            attention_mask=encoder_attention_mask,
            decoder_input_ids=input_ids,
            encoder_outputs=(encoder_hidden_states,),
            cache=cache,
            use_cache=True,
            output_attentions=self.with_attention,
        )
        pairs = zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True)
        present = [tensor for own, cross in pairs for tensor in (own.keys, own.values, cross.keys, cross.values)]
        return (output.logits, *present, *(output.cross_attentions or ()))


class _NextStep(nn.Module):
    """One more token of a target: keys and values of what was before are given."""

    def __init__(self, model: VanillaTransformerPreTrainedModel, with_attention: bool):
        super().__init__()
        self.model, self.with_attention = model, with_attention

    def forward(
        self, encoder_attention_mask: torch.Tensor, input_ids: torch.Tensor, *past: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        own, cross = DynamicCache(), DynamicCache()
        cache = EncoderDecoderCache(own, cross)
        for layer in range(len(past) // 4):
            own.update(past[4 * layer], past[4 * layer + 1], layer)
            cross.update(past[4 * layer + 2], past[4 * layer + 3], layer)
            cache.is_updated[layer] = True
        batch, _, source, _ = past[2].shape
        memory = past[2].new_zeros(batch, source, self.model.config.hidden_size)  # only its shape is read
        output = self.model(
            attention_mask=encoder_attention_mask,
            decoder_input_ids=input_ids,
            encoder_outputs=(memory,),
            cache=cache,
            use_cache=True,
            output_attentions=self.with_attention,
        )
        present = [tensor for layer in own.layers for tensor in (layer.keys, layer.values)]
        return (output.logits, *present, *(output.cross_attentions or ()))


class _LanguageModel(nn.Module):
    """Any number of tokens behind any number of earlier ones, none at the start."""

    def __init__(self, model: VanillaTransformerPreTrainedModel):
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor, *past: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        output = self.model(input_ids, attention_mask, position_ids, cache=cache, use_cache=True)
        return (output.logits, *(tensor for layer in cache.layers for tensor in (layer.keys, layer.values)))


def encoder_graph(model: VanillaTransformerPreTrainedModel) -> Graph:
    """Return the graph from source tokens (B, S) to states (B, S, D)."""
    ids, mask = _example(model, 2, 7)
    axes = {0: "batch_size", 1: "encoder_sequence_length"}
    return Graph(
        _Encoder(model).eval(), {"input_ids": (ids, axes), "attention_mask": (mask, axes)}, ["last_hidden_state"]
    )


def head_graph(model: VanillaTransformerPreTrainedModel, outputs: list[str]) -> Graph:
    """Return the graph of an encoder with a head, from tokens (B, S) to `outputs`."""
    ids, mask = _example(model, 2, 7)
    axes = {0: "batch_size", 1: "sequence_length"}
    inputs = {"input_ids": (ids, axes), "attention_mask": (mask, axes)}
    if model.config.type_vocab_size:
        inputs["token_type_ids"] = (torch.zeros_like(ids), axes)
    return Graph(_Head(model, outputs).eval(), inputs, outputs)


def decoder_graphs(model: VanillaTransformerPreTrainedModel, with_attention: bool = False) -> tuple[Graph, Graph]:
    """Return the graph of the first step of a decoder that attends to a source, and that of each further step.

    Args:
        with_attention: also write `cross_attentions.N` (B, H, T, S) for each layer, by the names of transformers.js; the model
            must compute with "eager" attention.
    """
    config = model.config
    ids, mask = _example(model, 2, 7)
    with torch.no_grad():
        states = model.base_model.encoder(ids, mask).last_hidden_state
    source = {0: "batch_size", 1: "encoder_sequence_length"}
    common = {"encoder_attention_mask": (mask, source)}
    target = {0: "batch_size", 1: "decoder_sequence_length"}
    names = [
        f"{layer}.{side}.{kind}"
        for layer in range(config.num_decoder_layers)
        for side in ("decoder", "encoder")
        for kind in ("key", "value")
    ]
    attentions = [f"cross_attentions.{layer}" for layer in range(config.num_decoder_layers) if with_attention]
    first = Graph(
        _FirstStep(model, with_attention).eval(),
        {**common, "input_ids": (ids[:, :3], target), "encoder_hidden_states": (states, source)},
        ["logits", *(f"present.{name}" for name in names), *attentions],
    )
    past = {}
    for name in names:
        length, axis = (4, "past_decoder_sequence_length") if ".decoder." in name else (7, "encoder_sequence_length")
        past[f"past_key_values.{name}"] = (_keys(model, 2, length), {0: "batch_size", 2: axis})
    following = Graph(
        _NextStep(model, with_attention).eval(),
        {**common, "input_ids": (ids[:, :1], {0: "batch_size"}), **past},
        ["logits", *(f"present.{name}" for name in names if ".decoder." in name), *attentions],
    )
    return first, following


def language_model_graph(model: VanillaTransformerPreTrainedModel) -> Graph:
    """Return the graph of a decoder-only model: tokens (B, T) behind keys and values of P earlier ones, to logits."""
    ids, _ = _example(model, 2, 3)
    axes = {0: "batch_size", 1: "sequence_length"}
    inputs = {
        "input_ids": (ids, axes),
        "attention_mask": (
            torch.ones(2, 7, dtype=torch.long),
            {0: "batch_size", 1: "past_sequence_length + sequence_length"},
        ),
        "position_ids": (torch.arange(4, 7).expand(2, 3).contiguous(), axes),
    }
    names = [f"{layer}.{kind}" for layer in range(model.config.num_decoder_layers) for kind in ("key", "value")]
    for name in names:
        inputs[f"past_key_values.{name}"] = (_keys(model, 2, 4), {0: "batch_size", 2: "past_sequence_length"})
    return Graph(_LanguageModel(model).eval(), inputs, ["logits", *(f"present.{name}" for name in names)])


def trace(graph: Graph) -> Any:
    """Return the onnx `ModelProto` of a graph, with the weights in it."""
    values = tuple(value for value, _ in graph.inputs.values())
    dims: dict[str, Any] = {}

    def axes(named: dict[int, str]) -> Axes:
        # what is a sum of others is found by the exporter
        return {
            axis: torch.export.Dim.DYNAMIC if "+" in name else dims.setdefault(name, torch.export.Dim(name))
            for axis, name in named.items()
        }

    shapes = [axes(named) for _, named in graph.inputs.values()]
    parameters = graph.module.forward.__code__
    if parameters.co_flags & 0x04:  # the rest of the inputs is one tuple
        count = parameters.co_argcount - 1
        dynamic: Any = (*shapes[:count], tuple(shapes[count:]))
    else:
        dynamic = tuple(shapes)
    with _quiet_exporter(), torch.no_grad():
        program = torch.onnx.export(
            graph.module,
            values,
            dynamo=True,
            dynamic_shapes=dynamic,
            input_names=list(graph.inputs),
            output_names=graph.outputs,
            verbose=False,
        )
        assert program is not None
        return program.model_proto


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence what torch's exporter says of packages that are not there and of names of axes."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _example(model: VanillaTransformerPreTrainedModel, batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and a mask (batch, length) with padding in the last row."""
    ids = torch.arange(batch * length).reshape(batch, length) % model.config.vocab_size
    mask = torch.ones_like(ids)
    mask[-1, length - 2 :] = 0
    return ids, mask


def _keys(model: VanillaTransformerPreTrainedModel, batch: int, length: int) -> torch.Tensor:
    """Return keys or values (batch, K, length, d)."""
    config = model.config
    return torch.zeros(batch, config.num_key_value_heads, length, config.head_dim)  # type: ignore[arg-type]
