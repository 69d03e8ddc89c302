"""Load models, tokenizers and configurations from other people's folders and Hub ids.

Every command, pipeline and script reads them here, so that the same rules hold everywhere:

- No code of the folder runs unless `trust_remote_code=True` says so, and nobody is asked: a question would be answered by
  whatever stands on stdin.
- Weights are safetensors unless `use_safetensors=False` says otherwise, and no file outside the folder is read.
- What is missing raises FileNotFoundError, and what is damaged or does not fit raises `LoadingError`; each is one sentence
  that names the file and the remedy.
"""

from vanilla_transformer.loading.configs import check_config, check_generation_config, load_config
from vanilla_transformer.loading.devices import check_device, move_to_device
from vanilla_transformer.loading.errors import (
    LoadingError,
    RemoteCodeError,
    damaged,
    friendly_loading_errors,
    pickled_objects,
)
from vanilla_transformer.loading.models import check_fit, load_model
from vanilla_transformer.loading.sources import Source, locate, read_json_object
from vanilla_transformer.loading.tokenizers import (
    TARGET_TOKENIZER,
    has_target_tokenizer,
    has_tokenizer,
    load_tokenizer,
)
from vanilla_transformer.loading.weights import INDEX, WEIGHTS, format_shape, open_weights, shard_names, weight_files

__all__ = [
    "INDEX",
    "TARGET_TOKENIZER",
    "WEIGHTS",
    "LoadingError",
    "RemoteCodeError",
    "Source",
    "check_config",
    "check_device",
    "check_fit",
    "check_generation_config",
    "damaged",
    "format_shape",
    "friendly_loading_errors",
    "has_target_tokenizer",
    "has_tokenizer",
    "load_config",
    "load_model",
    "load_tokenizer",
    "locate",
    "move_to_device",
    "open_weights",
    "pickled_objects",
    "read_json_object",
    "shard_names",
    "weight_files",
]
