"""Load models whose weights fit their configuration, and move them to a device."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME as INDEX

from vanilla_transformer.loading.configs import check_generation_config, load_config
from vanilla_transformer.loading.sources import (
    ADAPTER_REMEDY,
    WEIGHTS,
    LoadingError,
    Source,
    damaged,
    friendly_loading_errors,
)
from vanilla_transformer.utils.errors import first_line
from vanilla_transformer.utils.quiet import quiet

__all__ = ["INDEX", "check_device", "check_fit", "format_shape", "load_model", "move_to_device"]
__all__ += ["open_weights", "shard_names", "weight_files"]


# -------------------------------------------------------------------------------------------------------------- models


def load_model(
    source: Source | str | os.PathLike,
    model_class: Any = None,
    *,
    config: PreTrainedConfig | None = None,
    trust_remote_code: bool = False,
    use_safetensors: bool | None = True,
    check: Callable[[Source, PreTrainedModel, dict[str, Any]], None] | None = None,
    **options: Any,
) -> PreTrainedModel:
    """Load a model whose weights fit its configuration, each in its place.

    Args:
        source: of [`locate`], a folder or a Hub id.
        model_class: a class of this package or of transformers, or an Auto class; by default the Auto class for what the
            model writes: AutoModelForSeq2SeqLM for an encoder-decoder, else AutoModelForCausalLM.
        config: in place of the folder's.
        trust_remote_code: run code of the folder where it is needed.
        use_safetensors: False for pickled weights, None for those where there are no others.
        check: is called with the loading info in place of [`check_fit`].
        options: of `from_pretrained`.

    Raises:
        LoadingError: for files that are damaged or do not fit each other, with both numbers, and for pickled weights
            that hold more than tensors.
        FileNotFoundError: where something is missing.
    """
    source = Source.of(source)
    loaded = load_config(source, trust_remote_code=trust_remote_code) if config is None else config
    if model_class is None:
        model_class = AutoModelForSeq2SeqLM if loaded.is_encoder_decoder else AutoModelForCausalLM
    # what would be said in other words, or not at all, by what comes next
    check_generation_config(source)
    weight_files(source)  # refuses a damaged index
    if source.folder is None and source.file("adapter_config.json") is not None:
        # transformers would load the base model that the adapter names, from wherever that is
        raise LoadingError(f"{source} is not a whole model: {ADAPTER_REMEDY}.")
    if hasattr(model_class, "_model_mapping"):
        options["trust_remote_code"] = bool(trust_remote_code)
    if config is not None:
        options["config"] = config
    with friendly_loading_errors(source), quiet():
        model, found = model_class.from_pretrained(
            source.name,
            revision=source.revision,
            use_safetensors=use_safetensors,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, in one sentence
            **options,
        )
    (check or check_fit)(source, model, found)
    return model


def check_fit(source: Source, model: PreTrainedModel, found: Mapping[str, Any]) -> None:
    """Refuse weights that are not those of the model that config.json describes.

    Args:
        found: the loading info of `from_pretrained`.

    Raises:
        LoadingError: with both shapes, both numbers of layers, or the name of a weight.
    """

    def refuse(what: str) -> NoReturn:
        raise LoadingError(f"the weights in {source} {what}; copy config.json and weights from the same model.")

    if found["mismatched_keys"]:
        name, in_file, in_model = min((str(name), tuple(a), tuple(b)) for name, a, b in found["mismatched_keys"])
        refuse(
            f"do not fit its config.json: {name} is {format_shape(in_file)} in the weights and {format_shape(in_model)} by "
            "config.json"
        )
    missing, unexpected = sorted(found["missing_keys"]), sorted(found["unexpected_keys"])
    known = {re.sub(r"\.\d+\.", ".N.", name) for name in model.state_dict()}
    # layers that config.json does not count; of other names transformers leaves out what its classes do not use
    layers = [name for name in unexpected if re.sub(r"\.\d+\.", ".N.", name) in known]
    for name in (*layers, *missing):
        if (place := re.match(r"(.*?)\.\d+\.", name)) is not None:
            stored, built = _layer_counts(place[1], model, layers, missing)
            if stored and stored != built:
                refuse(
                    f"do not fit its config.json: {place[1]} has {stored} layers in the weights and {built} by config.json"
                )
    if missing:
        refuse(f"are not those of the model: {missing[0]} lacks")
    if unexpected and model.config.model_type == "vanilla_transformer":
        refuse(f"are not those of the model: config.json has no place for {unexpected[0]}")


def _layer_counts(place: str, model: PreTrainedModel, extra: list[str], missing: list[str]) -> tuple[int, int]:
    """Return how many layers the weights have below a name, and how many the model has."""

    def count(names: Iterable[str]) -> int:
        found = (re.match(rf"{re.escape(place)}\.(\d+)\.", name) for name in names)
        return len({int(match[1]) for match in found if match})

    names = set(model.state_dict())
    return count((names - set(missing)) | set(extra)), count(names)


# ---------------------------------------------------------------------------------------------------- files of weights


def weight_files(source: Source | str | os.PathLike) -> list[Path]:
    """Return the safetensors files of a model, which may be several with an index; an empty list where there are none.

    Raises:
        LoadingError: for an index that is damaged, or names a file outside its folder.
        FileNotFoundError: for an index that names a file that is not there.
    """
    if not isinstance(source, Source):
        source = Source(os.fspath(source), Path(source))
    if (single := source.file(WEIGHTS)) is not None:
        return [single]
    if (index := source.read_json(INDEX)) is None:
        return []
    files = []
    for name in shard_names(index, f"{INDEX} of {source}"):
        if (file := source.file(name)) is None:
            raise FileNotFoundError(f"{INDEX} of {source} names {name}, which is not there; copy the folder again.")
        files.append(file)
    return files


def shard_names(index: Mapping[str, Any], named: str) -> list[str]:
    """Return the names of the files that an index of weights names, sorted.

    Raises:
        LoadingError: for an index without them, or with one that is not a plain name of a safetensors file.
    """
    table = index.get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise damaged(named, ", as it has no weight_map from weights to files")
    names = sorted(set(table.values()))
    for name in names:
        if not re.fullmatch(r"[^/\\\0]+\.safetensors", name) or name.startswith("."):
            raise LoadingError(
                f"{named} names {name!r}, which is not a safetensors file in the same folder, so it is not read; "
                "save the model again."
            )
    return names


@contextmanager
def open_weights(file: str | os.PathLike) -> Iterator[Any]:
    """Open a safetensors file for reading, on the CPU.

    Raises:
        LoadingError: for a file that is damaged.
    """
    try:
        opened = safe_open(os.fspath(file), framework="pt")
    except SafetensorError as error:
        raise damaged(file, f" ({first_line(error)})", "copy it again, or leave it out") from error
    with opened as weights:
        yield weights


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape as people read it, such as `512 x 64`."""
    return " x ".join(map(str, shape)) or "a number"


# ------------------------------------------------------------------------------------------------------------- devices


def check_device(device: str | None) -> None:
    """Refuse a device that is not here, before anything is loaded for it.

    Raises:
        ValueError: naming the devices there are.
    """
    if device is None:
        return
    here = ["cpu"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
        here += [f"{kind}:{number}" for number in range(torch.accelerator.device_count())]
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"--device {device!r} is not a device of torch; there is {', '.join(here)}.") from error
    names = {*here, "cpu:0", *(name.partition(":")[0] for name in here)}
    if str(wanted) not in names:
        raise ValueError(f"the device {device!r} is not here; there is {', '.join(here)}.")


def move_to_device(model: Any, device: str | None) -> Any:
    """Move a model to a device, by default to the accelerator where there is one.

    Raises:
        ValueError: where it cannot be moved there.
    """
    if device is None and torch.accelerator.is_available():
        device = str(torch.accelerator.current_accelerator())
    try:
        return model if device is None else model.to(device)
    except RuntimeError as error:
        raise ValueError(f"the model cannot be moved to the device {device!r}: {error}") from error
