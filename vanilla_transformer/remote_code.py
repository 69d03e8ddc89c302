"""Use the code in a folder where the installed package does not know what the folder holds."""

from functools import wraps
from typing import Any

__all__ = ["use_code_of_folders"]


def use_code_of_folders(auto_config: Any) -> None:
    """Let `AutoConfig`, and through it every Auto class, run a folder's own code where it is needed and trusted.

    transformers prefers a registered class to the code of a folder, also with `trust_remote_code=True`. So a model with a
    field that is younger than the installed package could be loaded only where this package is not imported. With
    `trust_remote_code=True`, a configuration that the installed class refuses is read by the class in the folder; the
    model class follows from that of the configuration.
    """
    installed = auto_config.from_pretrained
    if getattr(installed, "uses_code_of_folders", False):
        return

    @wraps(installed)
    def from_pretrained(cls: Any, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        # no sooner, since importing this package has to be quick
        import transformers
        from transformers import PreTrainedConfig
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        from .configuration_vanilla_transformer import ConfigurationError

        try:
            return installed(pretrained_model_name_or_path, **kwargs)
        except ConfigurationError:
            if not kwargs.pop("trust_remote_code", False):
                raise
            given = {name: value for name, value in kwargs.items() if name != "code_revision"}
            read, _ = PreTrainedConfig.get_config_dict(pretrained_model_name_or_path, **given)
            classes = dict(read.get("auto_map", {}))
            if "AutoConfig" not in classes:
                raise

            def found(class_name: str) -> Any:
                return get_class_from_dynamic_module(class_name, pretrained_model_name_or_path, **kwargs)

            config_class = found(classes.pop("AutoConfig"))
            config_class.register_for_auto_class()
            for automatic, class_name in classes.items():
                # else its configuration would be taken, by its name, for that of the installed package
                if automatic.startswith("AutoModel"):
                    getattr(transformers, automatic).register(config_class, found(class_name), exist_ok=True)
            return config_class.from_pretrained(pretrained_model_name_or_path, **given)

    from_pretrained.uses_code_of_folders = True  # type: ignore[attr-defined]
    auto_config.from_pretrained = classmethod(from_pretrained)
