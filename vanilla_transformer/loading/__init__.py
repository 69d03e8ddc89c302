"""Load models, tokenizers and configurations from other people's folders and Hub ids.

Every command, pipeline and script reads them here, so that the same rules hold everywhere:

- No code of the folder runs unless `trust_remote_code=True` says so, and nobody is asked: a question would be answered by
  whatever stands on stdin.
- Weights are safetensors unless `use_safetensors=False` says otherwise, and no file outside the folder is read.
- What is missing raises FileNotFoundError, and what is damaged or does not fit raises `LoadingError`; each is one sentence
  that names the file and the remedy.
"""

from vanilla_transformer.loading.configs import check_config, check_generation_config, load_config
from vanilla_transformer.loading.models import (
    INDEX,
    check_device,
    check_fit,
    format_shape,
    load_model,
    move_to_device,
    open_weights,
    shard_names,
    weight_files,
)
from vanilla_transformer.loading.sources import (
    WEIGHTS,
    LoadingError,
    RemoteCodeError,
    Source,
    damaged,
    friendly_loading_errors,
    locate,
    pickled_objects,
    read_json_object,
)
from vanilla_transformer.loading.tokenizers import (
    TARGET_TOKENIZER,
    has_target_tokenizer,
    has_tokenizer,
    load_tokenizer,
)

__all__ = ["INDEX", "TARGET_TOKENIZER", "WEIGHTS", "LoadingError", "RemoteCodeError", "Source", "check_config"]
__all__ += [
    "check_device",
    "check_fit",
    "check_generation_config",
    "damaged",
    "format_shape",
    "friendly_loading_errors",
]
__all__ += ["has_target_tokenizer", "has_tokenizer", "load_config", "load_model", "load_tokenizer", "locate"]
__all__ += ["move_to_device", "open_weights", "pickled_objects", "read_json_object", "shard_names", "weight_files"]
