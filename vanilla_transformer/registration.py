"""Make the models known to transformers and PEFT by their names, and fast decoding to the models, without importing any.

`import vanilla_transformer` has to be quick, since every start of the command does it. Each table below is filled as soon as
the module that holds it is imported, or at once where it has been already. The classes themselves are loaded when somebody
asks for them.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .remote_code import use_code_of_folders

__all__ = ["register"]

MODEL_TYPE = "vanilla_transformer"
CONFIG = "VanillaTransformerConfig"

MODELS = {
    "AutoModel": ("MODEL_MAPPING_NAMES", "VanillaTransformerModel"),
    "AutoModelForCausalLM": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "VanillaTransformerForCausalLM"),
    "AutoModelForMaskedLM": ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", "VanillaTransformerForMaskedLM"),
    "AutoModelForSeq2SeqLM": (
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        "VanillaTransformerForConditionalGeneration",
    ),
    "AutoModelForSequenceClassification": (
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        "VanillaTransformerForSequenceClassification",
    ),
    "AutoModelForTokenClassification": (
        "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
        "VanillaTransformerForTokenClassification",
    ),
    "AutoModelForQuestionAnswering": (
        "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
        "VanillaTransformerForQuestionAnswering",
    ),
}
"""The classes that each Auto class loads, and transformers' table of their names. Trainer decides by these tables whether its
label smoothing shifts labels, and pipelines whether they know the model."""


def register() -> None:
    """Fill the tables, now or when their modules are imported; any number of times."""
    # transformers looks for the classes of a model type in the module of this name
    sys.modules.setdefault(f"transformers.models.{MODEL_TYPE}", sys.modules[__package__])
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())  # type: ignore[arg-type]
    for name, action in ACTIONS.items():
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            action(module)


def _register_config(module: Any) -> None:
    module.CONFIG_MAPPING_NAMES[MODEL_TYPE] = CONFIG
    use_code_of_folders(module.AutoConfig)


def _register_models(module: Any) -> None:
    for automatic, (table, model) in MODELS.items():
        getattr(module, table)[MODEL_TYPE] = model
        # which was made from the names of configurations, perhaps before ours was among them
        getattr(module, automatic)._model_mapping._reverse_config_mapping[CONFIG] = MODEL_TYPE


def _register_pipelines(module: Any) -> None:
    importlib.import_module(f"{__package__}.pipelines")


def _register_adapters(module: Any) -> None:
    importlib.import_module(f"{__package__}.adapters").register(vars(module))


def _register_kernels(module: Any) -> None:
    importlib.import_module(f"{__package__}.kernels")  # which is perhaps being imported, and sets them at its end


def _register_decoding(module: Any) -> None:
    mixin = importlib.import_module(f"{__package__}.generation_vanilla_transformer").VanillaTransformerGenerationMixin
    mixin.decoding_backend = importlib.import_module(f"{__package__}.decoding.backend").FastDecoding


ACTIONS: dict[str, Callable[[ModuleType], None]] = {
    "transformers.models.auto.configuration_auto": _register_config,
    "transformers.models.auto.modeling_auto": _register_models,
    "transformers.pipelines": _register_pipelines,
    "peft.utils.constants": _register_adapters,
    # the files that come with checkpoints train and decode by themselves as transformers does
    f"{__package__}.kernels_vanilla_transformer": _register_kernels,
    f"{__package__}.modeling_vanilla_transformer": _register_decoding,
}


class _AfterImport:
    """Finds the modules of `ACTIONS` as the other finders do, and has their actions follow their import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        action = ACTIONS.get(fullname)
        if action is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            action(module)

        loader.exec_module = execute_and_act
        return spec
