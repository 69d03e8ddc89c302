"""Models of transformers' families to ours, and back, weight by weight."""

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

import vanilla_transformer as vt
from vanilla_transformer.loading import (
    LoadingError,
    RemoteCodeError,
    Source,
    format_shape,
    load_config,
    load_model,
    locate,
)
from vanilla_transformer.modeling_vanilla_transformer import (
    VanillaTransformerLMHeadModel,
    VanillaTransformerPreTrainedModel,
    sinusoidal_encoding,
)
from vanilla_transformer.utils.quiet import quiet

from .families import FAMILIES
from .family import OF_TRAINING, Family, Fields, differences, shape_of
from .links import LAYER, ConversionError, rename_to_ours, rename_to_theirs
from .rewriting import REWRITINGS, rewrite_field

__all__ = [
    "build_ours",
    "check_table",
    "family_of",
    "from_transformers",
    "load_ours",
    "load_theirs",
    "to_transformers",
]

logger = logging.get_logger(__name__)
Report = Callable[[str], Any]

LONGEST_LIST = 20

OWN_SETTINGS_OF_GENERATION = ("max_length_over_source", "length_penalty_form")


def from_transformers(
    model_or_path: PreTrainedModel | str | Path,
    *,
    revision: str | None = None,
    dtype: torch.dtype | str | None = None,
    report: Report = logger.warning,
) -> VanillaTransformerPreTrainedModel:
    """A model of a family of transformers as one of ours, with the same outputs.

    Args:
        model_or_path: a model, a folder, or an id on the Hub. Pickled weights are read as data alone.
        revision: of an id on the Hub.
        dtype: of the weights; `None` for as they are.
        report: gets a line for all that is left out on purpose, such as the pooler of BERT.

    Returns:
        The model with the fitting head, in eval mode, with the settings of generation of the one given.

    Raises:
        ConversionError: for a family, class or setting that has no place here, and for weights without a place or
            places without a weight, all of which it names.
    """
    if not isinstance(model_or_path, PreTrainedModel):
        with _errors_of_loading():
            source = locate(model_or_path, revision=revision)
        model_or_path = load_theirs(source, dtype, report)
    model = model_or_path
    family, head = family_of(model)
    fields = family.fields(model.config)
    prefix = family.prefix if _is_bare(family, model) else ""
    theirs = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    _report_dropped(family, theirs, report)
    theirs = {name: tensor for name, tensor in theirs.items() if _dropped_for(family, name) is None}
    for name, original in family.copies.items():
        if name in theirs and not torch.equal(theirs.pop(name), theirs[original]):
            report(f"{name} is left out: no layer reads it.")
    tables = {name: theirs.pop(name) for name in family.computed if name in theirs}

    ours, unknown = rename_to_ours(family.links, theirs)
    if unknown:
        raise ConversionError(f"{type(model).__name__}: there is no place for {_listed(unknown)}.")
    fields |= _ties(ours)
    if head == "VanillaTransformerForTokenClassification":
        fields |= {"id2label": model.config.id2label, "label2id": model.config.label2id}
    _check_head_activation(family, model.config, head)
    for name in family.training:
        if value := getattr(model.config, name, None):
            report(f"{name}={value} is left out: it matters only in training.")
    fields["task_specific_params"] = getattr(model.config, "task_specific_params", None)
    config = vt.VanillaTransformerConfig(**fields)
    for name, table in tables.items():
        check_table(name, table, config)
    converted = build_ours(getattr(vt, head), config, ours, dtype or model.dtype, type(model).__name__)
    _carry_generation_config(model, converted)
    return converted.to(model.device)


def to_transformers(
    model: VanillaTransformerPreTrainedModel, family: str | None = None, *, report: Report = logger.warning
) -> PreTrainedModel:
    """Return one of our models as one of a family of transformers, with the same outputs, for all that runs its class.

    Where no family has the model's form, it is written in another one that computes the same: interleaved sinusoids as
    concatenated ones, no biases as biases of zeros, and the like. Each such change is reported. One of them, the eps of norms
    that a class fixes, is not exact.

    Args:
        model: with a head that families have, or without one.
        family: a `model_type`, such as `"marian"`; `None` for the first that can hold the model.
        report: gets a line for every setting of training that has no place there.

    Raises:
        ConversionError: where the family, or any, cannot hold the model, naming the fields that stand in the way.
    """
    if family is not None and family not in FAMILIES:
        raise ConversionError(f"unknown family {family!r}; the families are {', '.join(FAMILIES)}.")
    ours = type(model).__name__
    obstacles: dict[str, _Obstacles] = {}
    for name in FAMILIES if family is None else [family]:
        if (head := _head_for(FAMILIES[name], ours)) is None:
            continue
        obstacles[name] = _obstacles(FAMILIES[name], head, model)
        if not obstacles[name]:
            return _build_theirs(FAMILIES[name], head, model, report)
    for name in obstacles:
        if rewritten := _rewrite_for(FAMILIES[name], model, report):
            return _build_theirs(FAMILIES[name], _head_for(FAMILIES[name], ours), rewritten, report)  # type: ignore[arg-type]
    if not obstacles:
        which = "no family of transformers has a class"
        if family is not None:
            which = f"{family} has no class"
        raise ConversionError(f"{ours} cannot be converted: {which} with such a head that computes the same.")
    if family is not None:
        raise ConversionError(
            f"{family} cannot hold this model; in the way is {obstacles[family].told(model.config)}."
        )
    nearest = min(obstacles, key=lambda name: (obstacles[name].reason is not None, len(obstacles[name].fields)))
    in_the_way = f"in the way of the nearest, {nearest}, is {obstacles[nearest].told(model.config)}"
    fields = [set(found.fields) for found in obstacles.values() if found.fields]
    if in_all := sorted(set.intersection(*fields) if len(fields) == len(obstacles) else set()):
        in_the_way = f"none has {_Obstacles(in_all).told(model.config)}; {in_the_way}"
    raise ConversionError(f"no family of transformers can hold this model: {in_the_way}.")


def family_of(model: PreTrainedModel) -> tuple[Family, str]:
    """The family of a model of transformers, and the name of the class of ours that holds it."""
    return _family_and_head(model.config.model_type, type(model).__name__)


def _family_and_head(model_type: str, class_name: str) -> tuple[Family, str]:
    if model_type not in FAMILIES:
        if model_type == vt.VanillaTransformerConfig.model_type:
            raise ConversionError(f"{class_name} is a model of this package already; load it with an Auto class.")
        raise ConversionError(
            f"models of the family {model_type!r} cannot be converted; those of {', '.join(FAMILIES)} can."
        )
    family = FAMILIES[model_type]
    if class_name not in family.heads:
        why = "its head computes something else than ours"
        if class_name.endswith("ForSequenceClassification"):
            why = "it makes one vector of a sequence in another way than ours"
        raise ConversionError(
            f"{class_name} cannot be converted, as {why}; of {model_type}, {', '.join(family.heads)} can."
        )
    return family, family.heads[class_name]


def load_theirs(
    source: Source, dtype: torch.dtype | str | None, report: Report, *, trust_remote_code: bool = False
) -> PreTrainedModel:
    """Load a model of transformers, if its file holds all its weights, and no others but what is dropped.

    Pickled weights are read as data alone.

    Raises:
        ConversionError: where they do not, and for files that are damaged.
    """
    found: dict[str, Any] = {}
    with _errors_of_loading():
        config = load_config(source, trust_remote_code=trust_remote_code)
        class_name = _class_to_load(config, source.name, report)
        family, _ = _family_and_head(config.model_type, class_name)
        model = load_model(
            source,
            getattr(transformers, class_name),
            use_safetensors=None,
            check=lambda _source, _model, info: found.update(info),  # by what the family drops, below
            dtype=dtype or "auto",
            weights_only=True,
            **family.options.get(class_name, {}),
        )
    prefix = family.prefix if _is_bare(family, model) else ""
    unexpected = [_with_prefix(family, name, prefix) for name in found["unexpected_keys"]]
    _report_dropped(family, unexpected, report)
    unplaced = [name for name in unexpected if _dropped_for(family, name) is None]
    lacking = [prefix + name for name in found["missing_keys"]]
    lacking = [n for n in lacking if n not in family.computed and _dropped_for(family, n) is None]
    _refuse(source.name, unplaced, lacking, _mismatched(found))
    return model


def _class_to_load(config: PreTrainedConfig, path: str, report: Report) -> str:
    """Return the name of the class of transformers for a configuration.

    Checkpoints of years ago name classes that have been renamed since (`T5WithLMHeadModel`, `LLaMAForCausalLM`). As in
    transformers, the class is then that of the model type; whether the weights fit it is checked when they are read.
    """
    known = FAMILIES.get(config.model_type)
    first = next(iter(known.heads)) if known else path
    named = (config.architectures or [first])[0]
    if known and not hasattr(transformers, named):
        report(f"{path} names the class {named}, which transformers does not have; it is read as {first}.")
        return first
    return named


def load_ours(source: Source) -> VanillaTransformerPreTrainedModel:
    """Load a model of this package, if its file holds all its weights, and no others.

    Raises:
        ConversionError: where it does not, and for a model of another kind.
    """
    try:
        config = load_config(source)
    except RemoteCodeError as error:
        raise ConversionError(f"{error.what}; give a model of this package, which needs none.") from error
    except LoadingError as error:
        raise ConversionError(str(error)) from error
    if not isinstance(config, vt.VanillaTransformerConfig):
        raise ConversionError(
            f"{source} is a model of the family {config.model_type!r} already; leave --to-transformers out to convert it to ours."
        )
    name = (config.architectures or [vt.VanillaTransformerModel.__name__])[0]
    model_class = getattr(vt, name, None)
    if not (isinstance(model_class, type) and issubclass(model_class, VanillaTransformerPreTrainedModel)):
        raise ConversionError(f"{source}: {name!r}, which its config.json names, is not a class of this package.")
    found: dict[str, Any] = {}
    with _errors_of_loading():
        model = load_model(source, model_class, check=lambda _source, _model, info: found.update(info), dtype="auto")
    _refuse(source.name, sorted(found["unexpected_keys"]), sorted(found["missing_keys"]), _mismatched(found))
    return model.eval()


def _with_prefix(family: Family, name: str, prefix: str) -> str:
    """A name in the file of a model, whose weights may lack the prefix also where the model has a head."""
    if name.startswith(family.prefix):
        return name
    return family.prefix + name if _dropped_for(family, family.prefix + name) else prefix + name


def _mismatched(found: dict[str, Any]) -> list[str]:
    """Return the names of weights that do not fit, with both shapes."""
    return sorted(
        f"{name} ({format_shape(stored)} in the weights, {format_shape(built)} by config.json)"
        for name, stored, built in found["mismatched_keys"]
    )


@contextmanager
def _errors_of_loading() -> Iterator[None]:
    """Raise what cannot be loaded as what cannot be converted.

    Raises:
        ConversionError: in place of a LoadingError.
    """
    try:
        yield
    except LoadingError as error:
        raise ConversionError(str(error)) from error


def build_ours(
    model_class: type[VanillaTransformerPreTrainedModel],
    config: vt.VanillaTransformerConfig,
    weights: dict[str, torch.Tensor],
    dtype: torch.dtype | str,
    source: str,
) -> VanillaTransformerPreTrainedModel:
    """A model of ours of exactly these weights, named as those of a model with a head.

    Raises:
        ConversionError: where a weight has no place, a place no weight, or one does not fit.
    """
    if model_class is vt.VanillaTransformerModel:
        weights = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    with torch.device("meta"):
        expected = {name: tensor.shape for name, tensor in model_class(config).state_dict().items()}
    wrong = [name for name in weights if name in expected and weights[name].shape != expected[name]]
    _refuse(source, [n for n in weights if n not in expected], [n for n in expected if n not in weights], wrong)
    # copies, since loading takes tensors as they are, and the model given must not change with this one
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    with quiet():
        return model_class.from_pretrained(None, config=config, state_dict=weights, dtype=dtype).eval()


def _build_theirs(
    family: Family, head: str, model: VanillaTransformerPreTrainedModel, report: Report
) -> PreTrainedModel:
    their_class, options = getattr(transformers, head), family.options.get(head, {})
    settings = family.settings(model.config)
    if head.endswith("ForTokenClassification"):
        settings = {**settings, "id2label": model.config.id2label, "label2id": model.config.label2id}
    config = their_class.config_class(**settings)
    if model.config.task_specific_params is not None:
        config.task_specific_params = copy.deepcopy(model.config.task_specific_params)
    held = vt.VanillaTransformerConfig(**family.fields(config))
    for name in OF_TRAINING:
        if getattr(held, name) != getattr(model.config, name):
            report(f"{name}={getattr(model.config, name)} is left out: {family.name} has no such setting.")
    with torch.device("meta"):
        empty = their_class(config, **options)
    bare = _is_bare(family, empty)
    known = [family.prefix + name if bare else name for name in empty.state_dict()]
    prefix = "model." if isinstance(model, vt.VanillaTransformerModel) else ""
    ours = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    theirs, unknown = rename_to_theirs(family.links, ours, known)
    theirs |= {name: theirs[original] for name, original in family.copies.items() if name in known}
    lacking = [name for name in known if name not in theirs and name not in family.computed]
    _refuse(type(model).__name__, unknown, lacking, [])
    theirs = {name.removeprefix(family.prefix) if bare else name: tensor.clone() for name, tensor in theirs.items()}
    with quiet():
        converted = their_class.from_pretrained(
            None, config=config, state_dict=theirs, dtype=model.dtype, **options
        ).eval()
    _carry_generation_config(model, converted)
    for name in OWN_SETTINGS_OF_GENERATION if converted.can_generate() else ():
        if (value := getattr(converted.generation_config, name, None)) is not None:
            delattr(converted.generation_config, name)
            report(f"{name}={value!r} is left out: generate() of transformers has no such setting.")
    return converted.to(model.device)


def _rewrite_for(
    family: Family, model: VanillaTransformerPreTrainedModel, report: Report
) -> VanillaTransformerPreTrainedModel | None:
    """Return a model with the same outputs that the family can hold, or None where rewriting does not lead there."""
    head = _head_for(family, type(model).__name__)
    assert head is not None  # families without the head are no obstacles
    said: list[str] = []
    for _ in range(len(REWRITINGS) + 1):
        obstacles = _obstacles(family, head, model)
        if not obstacles:
            for line in said:
                report(line)
            return model
        for name in obstacles.fields:
            if name not in obstacles.wanted:
                continue
            with quiet():
                rewritten = rewrite_field(model, name, obstacles.wanted[name])
            if rewritten is not None:
                before, after = getattr(model.config, name), getattr(rewritten.config, name)
                exact = "" if name != "norm_eps" else ", which changes outputs a little"
                said.append(f"{name}={before!r} is written as {after!r} for {family.name}{exact}.")
                model = rewritten
                break
        else:
            return None
    return None


@dataclass
class _Obstacles:
    """Why a family cannot hold a model: fields that it does not have, or what its configuration says.

    Attributes:
        fields: that differ.
        reason: what the configuration of the family says, where it says something.
        wanted: the values that fields have in the model that the family would hold, where they are known.
    """

    fields: list[str]
    reason: str | None = None
    wanted: Fields = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.fields) or self.reason is not None

    def told(self, config: vt.VanillaTransformerConfig) -> str:
        """What is in the way, with its value in a configuration, for a sentence."""
        # the values that were compared; a field that the family alone reads has none among them
        shape = shape_of(config, has_head=True)
        named = [f"{name}={shape.get(name, getattr(config, name))!r}" for name in self.fields]
        return ", ".join(named + ([self.reason] if self.reason else []))


def _obstacles(family: Family, head: str, model: VanillaTransformerPreTrainedModel) -> _Obstacles:
    writes = isinstance(model, VanillaTransformerLMHeadModel)
    shape = shape_of(model.config, writes)
    try:
        with quiet():
            config = getattr(transformers, head).config_class(**family.settings(model.config))
        held = vt.VanillaTransformerConfig(**family.fields(config))
    except (ValueError, TypeError) as error:
        never = [name for name, value in family.fixed.items() if name in shape and shape[name] != value]
        return _Obstacles(never, None if never else " ".join(str(error).split()).rstrip("."), dict(family.fixed))
    wanted = shape_of(held, writes)
    found = differences(shape, wanted)
    if writes and family.ties_by_weights and "tie_word_embeddings" in found:
        found.remove("tie_word_embeddings")
    if writes and family.head_activation not in (None, model.config.hidden_act):
        found.append("hidden_act")
    return _Obstacles(found, wanted=wanted)


def _head_for(family: Family, ours: str) -> str | None:
    return next((theirs for theirs, held in family.heads.items() if held == ours), None)


def _check_head_activation(family: Family, config: PreTrainedConfig, head: str) -> None:
    if head == "VanillaTransformerForMaskedLM" and family.head_activation not in (None, config.hidden_act):
        raise ConversionError(
            f"{family.name}: hidden_act={config.hidden_act!r} cannot be converted, as its head keeps to "
            f"{family.head_activation!r}, and in ours the activation is that of the layers."
        )


def _is_bare(family: Family, model: PreTrainedModel) -> bool:
    """Whether the names of weights lack the prefix that they have in models with a head."""
    return bool(family.prefix) and not hasattr(model, family.prefix.removesuffix("."))


def _dropped_for(family: Family, name: str) -> str | None:
    for start, purpose in family.dropped.items():
        if re.match(re.escape(start).replace(re.escape(LAYER), r"\d+"), name):
            return purpose
    return None


def _report_dropped(family: Family, names: Iterable[str], report: Report) -> None:
    by_purpose: dict[str, list[str]] = {}
    for name in sorted(names):
        if purpose := _dropped_for(family, name):
            by_purpose.setdefault(purpose, []).append(name)
    for purpose, dropped in by_purpose.items():
        report(f"{_listed(dropped)}: left out, {purpose}.")


def _ties(ours: dict[str, torch.Tensor]) -> Fields:
    """What is one matrix in a model at hand, whatever its configuration says."""

    def same(one: str, other: str) -> bool:
        return ours[one].data_ptr() == ours[other].data_ptr()

    ties: Fields = {}
    encoder, decoder = (f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
    if "lm_head.weight" in ours:
        ties["tie_word_embeddings"] = same("lm_head.weight", decoder if decoder in ours else encoder)
    if encoder in ours and decoder in ours:
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


def _carry_generation_config(source: PreTrainedModel, target: PreTrainedModel) -> None:
    if source.can_generate() and target.can_generate():
        target.generation_config = copy.deepcopy(source.generation_config)
        # else settings that transformers does not know are dropped on saving
        target.generation_config._from_model_config = False


def _refuse(source: str, unplaced: list[str], lacking: list[str], wrong: list[str]) -> None:
    reasons = [
        f"{what} {_listed(names)}"
        for what, names in (
            ("there is no place for", unplaced),
            ("there is no weight for", lacking),
            ("the size does not fit of", wrong),
        )
        if names
    ]
    if reasons:
        raise ConversionError(f"{source}: {'; '.join(reasons)}.")


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - LONGEST_LIST} more" if len(names) > LONGEST_LIST else ""
    return ", ".join(names[:LONGEST_LIST]) + more
