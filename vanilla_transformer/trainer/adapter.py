"""Adapters of a run, by PEFT: what a recipe says of them, where they go into the model, and how they are merged."""

import dataclasses
import importlib.util
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from vanilla_transformer.errors import RecipeError
from vanilla_transformer.utils.extras import missing
from vanilla_transformer.utils.names import did_you_mean
from vanilla_transformer.utils.public import one_line

ADAPTER_WEIGHTS = "adapter_model.safetensors"

ADAPTER_FILES = (ADAPTER_WEIGHTS, "adapter_config.json")
STANDALONE = ("model.safetensors", "config.json", "generation_config.json")
"""Files of a folder that holds an adapter, and of one that holds a model."""

_TASK_TYPES = {
    "seq2seq": "SEQ_2_SEQ_LM",
    "causal-lm": "CAUSAL_LM",
    "sequence-classification": "SEQ_CLS",
    "token-classification": "TOKEN_CLS",
}
# what PEFT calls these in its kinds of adapters
_NAMES = {"r": ("r",), "alpha": ("lora_alpha", "alpha"), "dropout": ("lora_dropout", "rank_dropout", "module_dropout")}
_SET_ELSEWHERE = {"task_type": "task", "base_model_name_or_path": "start_from", "peft_type": "adapter.kind"}


@dataclass
class AdapterSection:
    """Small weights that are trained in the place of the model's own, which `start_from` names and which stay as they are.

    Attributes:
        kind: of PEFT, such as lora, loha, lokr or ia3; lora where any of the others is set. None for no adapter.
        r: rank of the adapter's matrices; 8 by default.
        alpha: what the adapter adds is multiplied by `alpha / r`; 16 by default.
        dropout: of what goes into the adapter.
        target_modules: layers that get one, by the ends of their names, or `all-linear`; by default the queries and values
            of every attention, for kinds that PEFT knows such a default of.
        modules_to_save: modules that are trained as a whole and saved with the adapter, such as a head.
        options: further fields of PEFT's configuration of that kind, such as `use_rslora`.
        merge: add the adapter to the weights at the end, so that the run's folder is a model like any other; else it holds the
            adapter alone, which `PeftModel.from_pretrained` puts into the model that `start_from` names.
    """

    kind: str | None = None
    r: int | None = None
    alpha: float | None = None
    dropout: float | None = None
    target_modules: list[Any] | str | None = None
    modules_to_save: list[Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    merge: bool = True

    def __post_init__(self) -> None:
        given = (self.r, self.alpha, self.dropout, self.target_modules, self.modules_to_save)
        if self.kind is None and (self.options or any(value is not None for value in given)):
            self.kind = "lora"

    def config(self, task: str) -> Any:
        """Return PEFT's configuration.

        Args:
            task: name of the recipe's task.

        Raises:
            RecipeError: for what PEFT does not know or refuses, and where it is not installed.
        """
        if importlib.util.find_spec("peft") is None:
            raise RecipeError(f"{missing('adapter', 'peft')[:-1]}; or leave the section out.")
        from peft import PeftConfig
        from peft.config import PromptLearningConfig
        from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

        kinds: Mapping[str, type[PeftConfig]] = {
            str(getattr(name, "value", name)).lower(): config
            for name, config in PEFT_TYPE_TO_CONFIG_MAPPING.items()
            if not issubclass(config, PromptLearningConfig) and "target_modules" in _fields(config)
        }
        kind = str(self.kind)
        if kind not in kinds:
            raise RecipeError(
                f"adapter.kind={kind!r} is not a kind of PEFT that goes into layers; {did_you_mean(kind, kinds)}"
            )
        # the fields of this section by the names of that kind, then those of `options`
        known = _fields(kinds[kind])
        values: dict[str, Any] = {"task_type": _TASK_TYPES.get(task), "target_modules": self.target_modules}
        for name, default in (("r", 8), ("alpha", 16), ("dropout", None)):
            given = getattr(self, name)
            own = next((option for option in _NAMES[name] if option in known), None)
            if own is None and given is not None:
                raise RecipeError(f"adapter.{name} has no effect for adapter.kind={self.kind}; leave it out.")
            if own is not None and (given is not None or default is not None):
                values[own] = default if given is None else given
        if self.modules_to_save is not None:
            values["modules_to_save"] = self.modules_to_save
        for name, value in self.options.items():
            if name in _SET_ELSEWHERE:
                raise RecipeError(f"adapter.options.{name} is set by {_SET_ELSEWHERE[name]}; leave it out.")
            if name not in known:
                raise RecipeError(f"unknown field adapter.options.{name}; {did_you_mean(str(name), known)}")
            values[name] = value
        try:
            return kinds[kind](**values)
        except (TypeError, ValueError, ImportError) as error:
            raise RecipeError(f"adapter: {one_line(error)}") from error

    def check(self, task: str, start_from: str | None) -> None:
        """Refuse an adapter that cannot be trained.

        Raises:
            RecipeError: in one sentence.
        """
        if self.kind is None:
            return
        if start_from is None:
            raise RecipeError("adapter goes into a model that is trained already; name it by start_from.")
        for name in ("target_modules", "modules_to_save"):
            value = getattr(self, name)
            if isinstance(value, list) and not (value and all(isinstance(module, str) for module in value)):
                raise RecipeError(
                    f"adapter.{name}={value!r} must be a list of names of modules, such as [q_proj, v_proj]."
                )
        self.config(task)


def _fields(config: type) -> set[str]:
    return {field.name for field in dataclasses.fields(config)}


@contextmanager
def _quiet_peft() -> Iterator[None]:
    """Silence the warnings of what PEFT 0.21 asks of transformers 5.24: a property that has another name now, tied weights."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
        # it takes an output embedding that is not the input embedding for one that is not tied
        warnings.filterwarnings("ignore", "Input and output embeddings are no longer tied after merging")
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`")
        yield


def add_adapter(model: PreTrainedModel, section: AdapterSection, task: str, start_from: str | None) -> Any:
    """Return the model with an adapter in it, as a `PeftModel`; all other weights are frozen.

    Raises:
        RecipeError: for modules that the model does not have.
    """
    from peft import get_peft_model

    config = section.config(task)
    config.base_model_name_or_path = start_from
    try:
        with _quiet_peft():
            return get_peft_model(model, config)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecipeError(f"adapter: {one_line(error)}") from error


def is_adapted(model: Any) -> bool:
    """Return whether a model holds an adapter of PEFT."""
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def base_model(model: Any) -> Any:
    """Return the model of this package that one with an adapter wraps, or the model itself."""
    return model.get_base_model() if is_adapted(model) else model


def merge_adapter(model: Any) -> PreTrainedModel:
    """Return an ordinary model, in whose weights the adapter is."""
    with _quiet_peft():
        return model.merge_and_unload()


def save_model(model: Any, folder: Path) -> None:
    """Write a model, or of one with an adapter that alone, as PEFT reads it."""
    with _quiet_peft():
        model.save_pretrained(folder)


def set_weights(model: Any, weights: dict[str, torch.Tensor]) -> None:
    """Set weights by the names of the model's parameters, or by those of an adapter's file."""
    if is_adapted(model) and not weights.keys() <= model.state_dict().keys():
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, weights)
        return
    model.load_state_dict(weights, strict=False)
    base_model(model).tie_weights()
