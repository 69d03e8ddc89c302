"""Models of transformers' families to ours, and back, weight by weight."""

import copy
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

import vanilla_transformer as vt
from vanilla_transformer.conversion.architecture_adapter import TRAINING_FIELDS, ArchitectureAdapter, Fields
from vanilla_transformer.conversion.exact_loading import (
    family_of,
    friendly_conversion_errors,
    load_transformers_model,
    log_ignored,
)
from vanilla_transformer.conversion.families import FAMILIES
from vanilla_transformer.conversion.obstacles import Obstacles, describe_fields, find_obstacles, rewrite_for
from vanilla_transformer.conversion.weight_mapping import (
    ConversionError,
    Weights,
    check_placement,
    list_names,
    map_to_source,
    map_to_target,
)
from vanilla_transformer.loading import locate
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel, sinusoidal_encoding
from vanilla_transformer.utils.log import Log
from vanilla_transformer.utils.quiet import quiet

__all__ = ["build_vanilla_model", "check_table", "from_transformers", "to_transformers"]

logger = logging.get_logger(__name__)

OWN_GENERATION_SETTINGS = ("max_length_over_source", "length_penalty_form")


# --------------------------------------------------------------------------------------------------- from transformers


def from_transformers(
    model_or_path: PreTrainedModel | str | Path,
    *,
    revision: str | None = None,
    dtype: torch.dtype | str | None = None,
    log: Log = logger.warning,
) -> VanillaTransformerPreTrainedModel:
    """Convert a model of a family of transformers to one of ours, with the same outputs.

    Args:
        model_or_path: a model, a folder, or an id on the Hub. Pickled weights are read as data alone.
        revision: of an id on the Hub.
        dtype: of the weights; `None` for as they are.
        log: gets a line for all that is left out on purpose, such as the pooler of BERT.

    Returns:
        The model with the fitting head, in eval mode, with the settings of generation of the one given.

    Raises:
        ConversionError: for a family, class or setting that has no place here, and for weights without a place or
            places without a weight, all of which it names.
    """
    if not isinstance(model_or_path, PreTrainedModel):
        with friendly_conversion_errors():
            source = locate(model_or_path, revision=revision)
        model_or_path = load_transformers_model(source, dtype, log)
    model = model_or_path
    class_name = type(model).__name__
    family, head = family_of(model.config.model_type, class_name)
    fields = family.target_fields(model.config)

    # weights: without what is ignored, held twice, or computed from a formula
    prefix = family.prefix if family.is_bare(model) else ""
    weights = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    for name in log_ignored(family, list(weights), log):
        del weights[name]
    for name, original in family.copies.items():
        if name in weights and not torch.equal(weights.pop(name), weights[original]):
            log(f"{name} is left out: no layer reads it.")
    tables = {name: weights.pop(name) for name in family.computed if name in weights}
    mapped, unknown = map_to_target(family.weights, weights)
    if unknown:
        raise ConversionError(f"{class_name}: there is no place for {list_names(unknown)}.")
    if family.interleaved:
        mapped = family.reorder_pairs(mapped, fields["head_dim"])

    # configuration: what its settings say, and which weights are one
    fields |= _ties(mapped)
    if head == "VanillaTransformerForTokenClassification":
        fields |= {"id2label": model.config.id2label, "label2id": model.config.label2id}
    _check_head_activation(family, model.config, head)
    for name in family.training:
        if value := getattr(model.config, name, None):
            log(f"{name}={value} is left out: it matters only in training.")
    fields["task_specific_params"] = getattr(model.config, "task_specific_params", None)
    config = vt.VanillaTransformerConfig(**fields)

    for name, table in tables.items():
        check_table(name, table, config)
    converted = build_vanilla_model(getattr(vt, head), config, mapped, dtype or model.dtype, class_name)
    _carry_generation_config(model, converted)
    return converted.to(model.device)


def build_vanilla_model(
    model_class: type[VanillaTransformerPreTrainedModel],
    config: vt.VanillaTransformerConfig,
    weights: Weights,
    dtype: torch.dtype | str,
    what: str,
) -> VanillaTransformerPreTrainedModel:
    """Build a model of ours of exactly these weights, named as those of a model with a head.

    Raises:
        ConversionError: where a weight has no place, a place no weight, or one does not fit.
    """
    if model_class is vt.VanillaTransformerModel:
        weights = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    with torch.device("meta"):
        expected = {name: tensor.shape for name, tensor in model_class(config).state_dict().items()}
    wrong = [name for name in weights if name in expected and weights[name].shape != expected[name]]
    check_placement(what, [n for n in weights if n not in expected], [n for n in expected if n not in weights], wrong)
    # copies, since loading takes tensors as they are, and the model given must not change with this one
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    with quiet():
        return model_class.from_pretrained(None, config=config, state_dict=weights, dtype=dtype).eval()


def _check_head_activation(family: ArchitectureAdapter, config: PreTrainedConfig, head: str) -> None:
    if head != "VanillaTransformerForMaskedLM" or family.head_activation is None:
        return
    if family.head_activation != config.hidden_act:
        raise ConversionError(
            f"{family.name}: hidden_act={config.hidden_act!r} cannot be converted, as its head keeps to "
            f"{family.head_activation!r}, and in ours the activation is that of the layers."
        )


def _ties(weights: Weights) -> Fields:
    """Return what is one matrix in a model at hand, whatever its configuration says."""

    def same(one: str, other: str) -> bool:
        return weights[one].data_ptr() == weights[other].data_ptr()

    ties: Fields = {}
    encoder, decoder = (f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
    if "lm_head.weight" in weights:
        ties["tie_word_embeddings"] = same("lm_head.weight", decoder if decoder in weights else encoder)
    if encoder in weights and decoder in weights:
        ties["share_encoder_decoder_embeddings"] = same(encoder, decoder)
    return ties


def check_table(name: str, table: torch.Tensor, config: vt.VanillaTransformerConfig) -> None:
    """Refuse a table of sinusoids that are none, such as one that was trained.

    Args:
        name: of the table, for the sentence.
        table: (P, D), from position 0 on.
        config: of the model that will compute it.

    Raises:
        ConversionError: where they differ.
    """
    positions = torch.arange(config.position_offset, len(table))
    formula = sinusoidal_encoding(positions, config.embedding_width, config.sinusoidal_form)
    # float32 there, so large positions are off by some parts in a thousand
    if (off := (table[config.position_offset :].float().cpu() - formula).abs().max()) > 0.01:
        raise ConversionError(
            f"{name} differs from the sinusoids of {config.sinusoidal_form!r} by {off:.3g}, so it is a table of its own, for "
            "which there is no place."
        )


# ----------------------------------------------------------------------------------------------------- to transformers


def to_transformers(
    model: VanillaTransformerPreTrainedModel, family: str | None = None, *, log: Log = logger.warning
) -> PreTrainedModel:
    """Convert one of our models to one of a family of transformers, with the same outputs, for all that runs its class.

    Where no family has the model's form, it is written in another one that computes the same: interleaved sinusoids as
    concatenated ones, no biases as biases of zeros, and the like. Each such change is logged. One of them, the eps of norms
    that a class fixes, is not exact.

    Args:
        model: with a head that families have, or without one.
        family: a `model_type`, such as `"marian"`; `None` for the first that can hold the model.
        log: gets a line for every setting of training that has no place there.

    Raises:
        ConversionError: where the family, or any, cannot hold the model, naming the fields that stand in the way.
    """
    if family is not None and family not in FAMILIES:
        raise ConversionError(f"unknown family {family!r}; the families are {', '.join(FAMILIES)}.")
    target_class = type(model).__name__
    candidates = [FAMILIES[name] for name in FAMILIES if family in (None, name)]
    classes = [(each, name) for each in candidates if (name := each.source_class(target_class)) is not None]
    # as it is, before in another form
    obstacles: dict[str, Obstacles] = {}
    for each, class_name in classes:
        obstacles[each.name] = find_obstacles(each, class_name, model)
        if not obstacles[each.name]:
            return _build_transformers_model(each, class_name, model, log)
    for each, class_name in classes:
        if rewritten := rewrite_for(each, class_name, model, log):
            return _build_transformers_model(each, class_name, rewritten, log)
    raise ConversionError(_why_not(model, family, obstacles))


def _why_not(model: VanillaTransformerPreTrainedModel, family: str | None, obstacles: dict[str, Obstacles]) -> str:
    """Return the sentence for a model that no family, or not the one that was asked for, can hold."""
    if not obstacles:
        which = "no family of transformers has a class" if family is None else f"{family} has no class"
        return f"{type(model).__name__} cannot be converted: {which} with such a head that computes the same."
    if family is not None:
        return f"{family} cannot hold this model; in the way is {obstacles[family].describe(model.config)}."
    nearest = min(obstacles, key=lambda name: (obstacles[name].reason is not None, len(obstacles[name].fields)))
    in_the_way = f"in the way of the nearest, {nearest}, is {obstacles[nearest].describe(model.config)}"
    fields = [set(found.fields) for found in obstacles.values() if found.fields]
    if in_all := sorted(set.intersection(*fields) if len(fields) == len(obstacles) else set()):
        in_the_way = f"none has {', '.join(describe_fields(in_all, model.config))}; {in_the_way}"
    return f"no family of transformers can hold this model: {in_the_way}."


def _build_transformers_model(
    family: ArchitectureAdapter, class_name: str, model: VanillaTransformerPreTrainedModel, log: Log
) -> PreTrainedModel:
    source_class, options = getattr(transformers, class_name), family.options.get(class_name, {})
    # configuration, and what of ours it does not hold
    settings = family.source_settings(model.config)
    if class_name.endswith("ForTokenClassification"):
        settings = {**settings, "id2label": model.config.id2label, "label2id": model.config.label2id}
    config = source_class.config_class(**settings)
    if model.config.task_specific_params is not None:
        config.task_specific_params = copy.deepcopy(model.config.task_specific_params)
    held = vt.VanillaTransformerConfig(**family.target_fields(config))
    for name in TRAINING_FIELDS:
        if getattr(held, name) != getattr(model.config, name):
            log(f"{name}={getattr(model.config, name)} is left out: {family.name} has no such setting.")

    # weights, under the names of a model with a head
    with torch.device("meta"):
        empty = source_class(config, **options)
    bare = family.is_bare(empty)
    known = [family.prefix + name if bare else name for name in empty.state_dict()]
    prefix = "model." if isinstance(model, vt.VanillaTransformerModel) else ""
    weights = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    if family.interleaved:
        width: int = model.config.head_dim  # type: ignore[assignment]  # filled in by the configuration
        weights = family.reorder_pairs(weights, width, back=True)
    mapped, unknown = map_to_source(family.weights, weights, known)
    mapped |= {name: mapped[original] for name, original in family.copies.items() if name in known}
    lacking = [name for name in known if name not in mapped and name not in family.computed]
    check_placement(type(model).__name__, unknown, lacking)
    mapped = {name.removeprefix(family.prefix) if bare else name: tensor.clone() for name, tensor in mapped.items()}
    with quiet():
        converted = source_class.from_pretrained(None, config=config, state_dict=mapped, dtype=model.dtype, **options)

    _carry_generation_config(model, converted)
    for name in OWN_GENERATION_SETTINGS if converted.can_generate() else ():
        if (value := getattr(converted.generation_config, name, None)) is not None:
            delattr(converted.generation_config, name)
            log(f"{name}={value!r} is left out: generate() of transformers has no such setting.")
    return converted.eval().to(model.device)


def _carry_generation_config(source: PreTrainedModel, target: PreTrainedModel) -> None:
    if source.can_generate() and target.can_generate():
        target.generation_config = copy.deepcopy(source.generation_config)
        # else settings that transformers does not know are dropped on saving
        target.generation_config._from_model_config = False
