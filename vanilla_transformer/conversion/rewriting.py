"""Write a model down in another form that computes the same, so that a runtime without its choice can hold it.

Each function takes a model and returns another one of ours with other fields and the same outputs up to rounding: sinusoids in
another order of columns, biases of zeros, keys and values repeated for each head that shares them, a computed table of positions as
a learned one, embeddings already scaled. One of them is not exact: another eps of norms.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from vanilla_transformer.conversion.weight_mapping import Weights
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel, sinusoidal_encoding

__all__ = ["REWRITINGS", "rewrite_field", "sines_first"]

Model = VanillaTransformerPreTrainedModel

READS_STATES = ("q_proj", "k_proj", "v_proj", "up_proj", "gate_proj", "lm_head")
"""Projections whose inputs are the states that run through the layers."""

WRITES_STATES = ("o_proj", "down_proj")
"""Projections whose outputs are added to these states."""

EMBEDS = ("embed_tokens", "embed_positions", "embed_token_types")

LARGEST_EPS = 1e-5
"""Of a norm, below which one may stand for another."""


def rewrite_field(model: Model, field: str, value: Any) -> Model | None:
    """Return the model with another value of a field and the same outputs, or None where that is not possible.

    Args:
        model: stays as it is.
        field: of the configuration.
        value: that it should have.
    """
    rewriting = REWRITINGS.get(field)
    return None if rewriting is None else rewriting(model, field, value)


def sines_first(width: int) -> torch.Tensor:
    """Return the columns (width,) of interleaved sinusoids in the order of concatenated ones."""
    return torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])


def _concatenate_sinusoids(model: Model, field: str, value: Any) -> Model | None:
    """Put the sines of every vector before its cosines: a permutation of the columns of states, which no layer minds."""
    config = model.config
    if (config.sinusoidal_form, value) != ("interleaved", "concatenated") or config.output_transform:
        return None
    order = sines_first(config.embedding_width)
    in_layers = config.embedding_width == config.hidden_size

    def permute(name: str, tensor: torch.Tensor) -> torch.Tensor:
        module, kind = name.split(".")[-2:] if "." in name else ("", name)
        if module in EMBEDS or (module == "embed_projection" and kind == "weight"):
            return tensor[:, order]
        if in_layers and module in READS_STATES and kind == "weight":
            return tensor[:, order]
        is_norm = module == "norm" or module.endswith("_norm")
        if module == "embed_norm" or (in_layers and (is_norm or module in WRITES_STATES)):
            return tensor[order]
        return tensor

    weights = {name: permute(name, tensor) for name, tensor in model.state_dict().items()}
    return _build(model, weights, sinusoidal_form="concatenated")


def _add_zero_biases(model: Model, field: str, value: Any) -> Model | None:
    """Give projections or norms without biases ones that are zero."""
    if value not in (("fixed", "trained") if field == "output_bias" else (True,)):
        return None
    changes = {field: value}
    if field == "attention_bias":  # that of the output follows where nothing else is said
        changes["attention_output_bias"] = model.config.has_attention_output_bias
    weights = model.state_dict()
    shapes = {name: tensor.shape for name, tensor in _empty(model, changes).state_dict().items()}
    zeros = {name: torch.zeros(shape, dtype=model.dtype) for name, shape in shapes.items() if name not in weights}
    return _build(model, {**weights, **zeros}, **changes)


def _repeat_key_value_heads(model: Model, field: str, value: Any) -> Model | None:
    """Give every query head keys and values of its own, copies of those that it shared."""
    config = model.config
    if value != config.num_attention_heads:
        return None
    copies = config.num_attention_heads // config.num_key_value_heads  # type: ignore[operator]

    def repeat(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.unflatten(0, (-1, config.head_dim)).repeat_interleave(copies, dim=0).flatten(0, 1)

    shared = (["k_proj"], ["v_proj"])
    weights = {n: repeat(t) if n.split(".")[-2:-1] in shared else t for n, t in model.state_dict().items()}
    return _build(model, weights, num_key_value_heads=value)


def _tabulate_positions(model: Model, field: str, value: Any) -> Model | None:
    """Write the sinusoids down as a learned table, which ends at `max_position_embeddings`."""
    config = model.config
    if config.position_encoding != "sinusoidal" or value != "learned":
        return None
    places = torch.arange(config.max_position_embeddings + config.position_offset)
    table = sinusoidal_encoding(places, config.embedding_width, config.sinusoidal_form).to(model.dtype)
    weights = model.state_dict()
    tables = [
        name.replace("embed_tokens", "embed_positions") for name in weights if name.endswith("embed_tokens.weight")
    ]
    weights = {**weights, **dict.fromkeys(tables, table)}
    return _build(model, weights, position_encoding="learned", sinusoidal_form="interleaved")


def _scale_embeddings_beforehand(model: Model, field: str, value: Any) -> Model | None:
    """Multiply embeddings by the square root of their width once and for all, which unties them from the output."""
    config = model.config
    if value is not False or not config.scale_embedding:
        return None
    factor = config.embedding_width**0.5
    weights = {n: t * factor if n.endswith("embed_tokens.weight") else t for n, t in model.state_dict().items()}
    changes = {"scale_embedding": False, "tie_word_embeddings": False}
    if config.is_encoder_decoder:
        changes["share_encoder_decoder_embeddings"] = config.has_shared_embeddings
    return _build(model, weights, **changes)


def _change_norm_eps(model: Model, field: str, value: Any) -> Model | None:
    """Take the eps that a class fixes: not the same outputs, but so near that what differs is measured and told."""
    if max(value, model.config.norm_eps) > LARGEST_EPS:
        return None
    return _build(model, model.state_dict(), norm_eps=value)


REWRITINGS: Mapping[str, Callable[[Model, str, Any], Model | None]] = {
    "sinusoidal_form": _concatenate_sinusoids,
    "attention_bias": _add_zero_biases,
    "attention_output_bias": _add_zero_biases,
    "mlp_bias": _add_zero_biases,
    "norm_bias": _add_zero_biases,
    "output_bias": _add_zero_biases,
    "num_key_value_heads": _repeat_key_value_heads,
    "position_encoding": _tabulate_positions,
    "scale_embedding": _scale_embeddings_beforehand,
    "norm_eps": _change_norm_eps,
}
"""By the field that changes."""


def _empty(model: Model, changes: dict[str, Any]) -> Model:
    """Return a model without values, on the meta device, with changed fields."""
    fields = {**model.config.to_dict(), **changes}
    fields.pop("model_type", None)
    with torch.device("meta"):
        return type(model)(type(model.config).from_dict(fields))


def _build(model: Model, weights: Weights, **changes: Any) -> Model:
    config = _empty(model, changes).config
    held = {name: tensor.clone() for name, tensor in weights.items()}
    rewritten = type(model).from_pretrained(None, config=config, state_dict=held, dtype=model.dtype).eval()
    if rewritten.can_generate():
        rewritten.generation_config = copy.deepcopy(model.generation_config)
    return rewritten.to(model.device)
