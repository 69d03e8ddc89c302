"""Load the models that are converted, if their files hold all their weights, and no others."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

import vanilla_transformer as vt
from vanilla_transformer.conversion.architecture_adapter import ArchitectureAdapter
from vanilla_transformer.conversion.families import FAMILIES
from vanilla_transformer.conversion.weight_mapping import ConversionError, check_placement, list_names
from vanilla_transformer.loading import LoadingError, RemoteCodeError, Source, format_shape, load_config, load_model
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel
from vanilla_transformer.utils.log import Log

__all__ = ["family_of", "friendly_conversion_errors", "load_transformers_model", "load_vanilla_model", "log_ignored"]

FORMER_CLASSES = {
    "BartForMaskedLM": "BartForConditionalGeneration",
    "GPT2WithLMHead": "GPT2LMHeadModel",
    "LLaMAForCausalLM": "LlamaForCausalLM",
    "T5WithLMHeadModel": "T5ForConditionalGeneration",
}
"""Names of classes in checkpoints of years ago, and what transformers calls them today."""


def family_of(model_type: str, class_name: str) -> tuple[ArchitectureAdapter, str]:
    """Return the family of a model of transformers, and the name of the class of this package that holds it.

    Raises:
        ConversionError: where there is none.
    """
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


@contextmanager
def friendly_conversion_errors() -> Iterator[None]:
    """Raise what cannot be loaded as what cannot be converted.

    Raises:
        ConversionError: in place of a LoadingError.
    """
    try:
        yield
    except LoadingError as error:
        raise ConversionError(str(error)) from error


def load_transformers_model(
    source: Source, dtype: torch.dtype | str | None, log: Log, *, trust_remote_code: bool = False
) -> PreTrainedModel:
    """Load a model of transformers, if its file holds all its weights, and no others but what is ignored.

    Pickled weights are read as data alone.

    Raises:
        ConversionError: where they do not, and for files that are damaged.
    """
    found: dict[str, Any] = {}
    with friendly_conversion_errors():
        config = load_config(source, trust_remote_code=trust_remote_code)
        class_name = _class_of(config, source.name, log)
        family, _ = family_of(config.model_type, class_name)
        model = load_model(
            source,
            getattr(transformers, class_name),
            use_safetensors=None,
            check=lambda _source, _model, info: found.update(info),  # by what the family ignores, below
            dtype=dtype or "auto",
            weights_only=True,
            **family.options.get(class_name, {}),
        )
    prefix = family.prefix if family.is_bare(model) else ""
    unexpected = [_full_name(family, name, prefix) for name in found["unexpected_keys"]]
    ignored = log_ignored(family, unexpected, log)
    lacking = [prefix + name for name in found["missing_keys"]]
    lacking = [name for name in lacking if name not in family.computed and not family.purpose_of_ignored(name)]
    check_placement(source.name, [n for n in unexpected if n not in ignored], lacking, _mismatched(found))
    return model


def _class_of(config: PreTrainedConfig, path: str, log: Log) -> str:
    """Return the name of the class of transformers for a configuration.

    Raises:
        ConversionError: for a class that transformers does not have.
    """
    family = FAMILIES.get(config.model_type)
    named = (config.architectures or [None])[0]
    if family is None or (named is not None and hasattr(transformers, named)):
        return named or path
    if named is None:
        return next(iter(family.heads))
    if named not in FORMER_CLASSES:
        raise ConversionError(
            f"{path} names the class {named!r:.60}, which transformers does not have; set architectures in its config.json to "
            f"one of {', '.join(family.heads)}."
        )
    log(f"{path} names the class {named}, which is {FORMER_CLASSES[named]} in transformers today.")
    return FORMER_CLASSES[named]


def load_vanilla_model(source: Source) -> VanillaTransformerPreTrainedModel:
    """Load a model of this package, if its file holds all its weights, and no others.

    Raises:
        ConversionError: where it does not, and for a model of another kind.
    """
    with friendly_conversion_errors():
        try:
            config = load_config(source)
        except RemoteCodeError as error:
            raise ConversionError(f"{error.what}; give a model of this package, which needs none.") from error
        if not isinstance(config, vt.VanillaTransformerConfig):
            raise ConversionError(
                f"{source} is a model of the family {config.model_type!r}, not one of this package; `vanilla-transformer convert "
                f"{source} FOLDER` makes it one."
            )
        name = (config.architectures or [vt.VanillaTransformerModel.__name__])[0]
        model_class = getattr(vt, name, None)
        if not (isinstance(model_class, type) and issubclass(model_class, VanillaTransformerPreTrainedModel)):
            raise ConversionError(f"{source}: {name!r}, which its config.json names, is not a class of this package.")
        found: dict[str, Any] = {}
        model = load_model(source, model_class, check=lambda _source, _model, info: found.update(info), dtype="auto")
    check_placement(source.name, sorted(found["unexpected_keys"]), sorted(found["missing_keys"]), _mismatched(found))
    return model.eval()


def log_ignored(family: ArchitectureAdapter, names: list[str], log: Log) -> set[str]:
    """Return the weights that have no place here, with a line for all that are for the same."""
    by_purpose: dict[str, list[str]] = {}
    for name in sorted(names):
        if purpose := family.purpose_of_ignored(name):
            by_purpose.setdefault(purpose, []).append(name)
    for purpose, ignored in by_purpose.items():
        log(f"{list_names(ignored)}: left out, {purpose}.")
    return {name for ignored in by_purpose.values() for name in ignored}


def _full_name(family: ArchitectureAdapter, name: str, prefix: str) -> str:
    """Return a name in the file of a model, whose weights may lack the prefix also where the model has a head."""
    if name.startswith(family.prefix):
        return name
    return family.prefix + name if family.purpose_of_ignored(family.prefix + name) else prefix + name


def _mismatched(found: dict[str, Any]) -> list[str]:
    """Return the names of weights that do not fit, with both shapes."""
    return sorted(
        f"{name} ({format_shape(stored)} in the weights, {format_shape(built)} by config.json)"
        for name, stored, built in found["mismatched_keys"]
    )
