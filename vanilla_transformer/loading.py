"""Load models, tokenizers, configurations and run state from other people's folders and Hub ids.

Every command, pipeline and script reads them here, so that the same rules hold everywhere:

- No code of the folder runs unless `trust_remote_code=True` says so, and nobody is asked: a question would be answered by
  whatever stands on stdin.
- Weights are safetensors unless `use_safetensors=False` says otherwise, and no file outside the folder is read.
- What is missing raises FileNotFoundError, and what is damaged or does not fit raises `LoadingError`; each is one sentence
  that names the file and the remedy.
"""

import math
import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants, is_offline_mode
from huggingface_hub.errors import HFValidationError, StrictDataclassError
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError, safe_open
from transformers import (
    CONFIG_MAPPING,
    TOKENIZER_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.tokenization_auto import tokenizer_class_from_name
from transformers.utils.hub import cached_file, resolve_revision

from vanilla_transformer.configuration_vanilla_transformer import ConfigurationError
from vanilla_transformer.utils import json_files
from vanilla_transformer.utils.errors import first_line
from vanilla_transformer.utils.extras import missing
from vanilla_transformer.utils.names import did_you_mean
from vanilla_transformer.utils.quiet import quiet

__all__ = [
    "TARGET_TOKENIZER",
    "LoadingError",
    "RemoteCodeError",
    "Source",
    "check_config",
    "check_device",
    "check_fit",
    "check_generation_config",
    "format_shape",
    "friendly_loading_errors",
    "has_target_tokenizer",
    "has_tokenizer",
    "load_config",
    "load_model",
    "load_tokenizer",
    "locate",
    "open_weights",
    "pickle_sentence",
    "read_json_object",
    "shard_names",
    "weight_files",
]

TARGET_TOKENIZER = "target_tokenizer"
"""Folder inside a model folder that holds the target side's tokenizer, where vocabularies are separate."""

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"

# any of them makes a tokenizer; where there is none, transformers would make one without a vocabulary
TOKENIZER_FILES = (
    "tokenizer_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "vocab-src.json",
    "spiece.model",
    "source.spm",
    "sentencepiece.bpe.model",
)

TOKENIZER_PACKAGES = ("sentencepiece", "sacremoses", "tiktoken", "protobuf")
"""Packages that tokenizers of transformers need beside it."""

MOST_LAYERS = 10_000
"""More layers than this in a config.json are refused before a model of so many is built."""

LAYER_COUNTS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers", "n_layer")


ADAPTER = (
    "it is an adapter of PEFT, which needs its base model; load both with PEFT's AutoPeftModel, merge them with "
    "merge_and_unload() and save the result"
)


class LoadingError(ValueError):
    """A folder or Hub id that cannot be loaded as it stands; one sentence that names the file and the remedy."""


class RemoteCodeError(LoadingError):
    """A folder or Hub id that names code of its own, which is not run unasked.

    Attributes:
        what: the sentence without its remedy, for callers that have no `trust_remote_code`.
    """

    def __init__(self, what: str):
        remedy = (
            "read it, and where you trust whoever made it, give --trust-remote-code (trust_remote_code=True in Python)"
        )
        super().__init__(f"{what}; {remedy}.")
        self.what = what


@dataclass(frozen=True)
class Source:
    """A folder, or a repository on the Hub at one revision.

    Attributes:
        name: as transformers takes it: the path of the folder, or the id.
        folder: None for an id on the Hub.
        revision: branch, tag or commit of an id.
    """

    name: str
    folder: Path | None = None
    revision: str | None = None

    def __str__(self) -> str:
        return self.name

    def file(self, name: str) -> Path | None:
        """Return the path of a file, downloaded into the cache where the source is on the Hub; None where there is none."""
        if self.folder is not None:
            return path if (path := self.folder / name).is_file() else None
        try:
            found = cached_file(self.name, name, revision=self.revision)
        except OSError:
            return None
        return None if found is None else Path(found)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the object in a JSON file, or None where there is no such file.

        Raises:
            LoadingError: for a file that is not JSON, or holds something else than an object.
        """
        path = self.file(name)
        return None if path is None else read_json_object(path, f"{name} of {self}")


# Folder or Hub id ----------------------------------------------------------------------------------------------------


def locate(model: str | os.PathLike, *, revision: str | None = None, needs: str | None = "config.json") -> Source:
    """Tell a folder from a Hub id.

    What exists is a folder, and so is what begins with `.`, `/` or `~` or has more than one slash; all else is an id.

    Args:
        model: the path or id; `~` stands for the home folder.
        revision: a branch, tag or commit, of an id only.
        needs: a file without which a folder is refused.

    Raises:
        FileNotFoundError: for a folder that is not there, naming the nearest that is, or that lacks `needs`.
        LoadingError: for a name that can be neither, and for a folder with a revision.
    """
    given = os.fspath(model)
    path = os.path.expanduser(given)
    if "\0" in given:
        raise LoadingError(f"{given!r} is neither a folder nor a Hub id, as it holds a NUL character.")
    if not os.path.exists(path):
        if not given or given.startswith((".", "/", "~")) or given.count("/") > 1:
            raise FileNotFoundError(
                f"{given or repr(given)} is not there; give the folder of a finished run or saved model, or a Hub id."
                f"{_nearest_folder(path)}"
            )
        try:
            validate_repo_id(given)
        except HFValidationError as error:
            raise LoadingError(
                f"{given!r} is neither a folder here nor a Hub id such as me/my-model.{_nearest_folder(path)}"
            ) from error
        return Source(given, None, resolve_revision(given, revision))
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"{given} is a file; give the folder of a finished run or saved model, or a Hub id.")
    if revision is not None:
        raise LoadingError(f"{given} is a folder and has no revision {revision}; leave it out, or give a Hub id.")
    if needs is not None and not (folder / needs).is_file():
        raise FileNotFoundError(f"{given} holds no {needs}; {_instead_of(folder)}.")
    return Source(path, folder)


def _nearest_folder(path: str) -> str:
    parent = Path(path).parent
    try:
        names = [folder.name for folder in parent.iterdir() if folder.is_dir()]
    except OSError:
        return ""
    nearest = did_you_mean(Path(path).name, names, otherwise="")
    return f" ({nearest.replace(chr(39), chr(39) + str(parent) + os.sep, 1)})" if nearest else ""


def _instead_of(folder: Path) -> str:
    """Return what to give instead of a folder that holds no model."""
    if (folder / "adapter_config.json").is_file():
        return ADAPTER
    checkpoints = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdecimal()]
    checkpoints.sort(key=lambda path: int(path.name.removeprefix("checkpoint-")))
    if checkpoints:
        return f"its run is not finished: resume it, or give its last checkpoint, {checkpoints[-1]}"
    return "give the folder of a finished run or saved model"


# Files ---------------------------------------------------------------------------------------------------------------


def read_json_object(path: str | os.PathLike, named: str | None = None) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Args:
        named: how a sentence names the file; by default by its path.

    Raises:
        LoadingError: for a file that is not JSON, or holds something else than an object.
        OSError: for a file that cannot be read.
    """
    return json_files.read_json_object(path, named, error=LoadingError)


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
        raise LoadingError(f"{named} is damaged, as it has no weight_map from weights to files; copy it again.")
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
        raise LoadingError(f"{file} is damaged ({first_line(error)}); copy it again, or leave it out.") from error
    with opened as weights:
        yield weights


@contextmanager
def friendly_loading_errors(source: Source | str, what: str = "model") -> Iterator[None]:
    """Translate what the libraries raise over a damaged or foreign folder into one sentence.

    Args:
        what: is read: "model", "config.json", "tokenizer" or "checkpoint".

    Raises:
        LoadingError, FileNotFoundError: in their place.
    """
    try:
        yield
    except (LoadingError, ImportError):
        raise
    except (SafetensorError, EOFError) as error:
        raise LoadingError(f"the weights in {source} are damaged ({first_line(error)}); copy them again.") from error
    except pickle.UnpicklingError as error:
        raise LoadingError(pickle_sentence(source, error)) from error
    except OSError as error:
        raise _missing(source, error) from error
    except StrictDataclassError as error:
        reason = first_line(error.__cause__ or error)
        raise LoadingError(f"the config.json of {source} is damaged ({reason}); copy it again.") from error
    except Exception as error:  # libraries have an error of another kind for each place in a file
        if "trust_remote_code" in str(error) and not isinstance(error, ConfigurationError):
            raise RemoteCodeError(
                f"{source} can be loaded only with code of its own, which is not run unasked"
            ) from error
        if isinstance(error, ValueError) and what == "config.json":
            raise LoadingError(f"the config.json of {source} cannot be used: {first_line(error)}.") from error
        reason = first_line(error)
        if type(error) not in (ValueError, Exception):
            reason = f"{type(error).__name__}: {reason}"
        files = "config.json or the weights" if what == "model" else what
        are = "are" if what == "model" else "is"
        raise LoadingError(f"the {files} of {source} {are} damaged ({reason}); copy the folder again.") from error


def pickle_sentence(source: Source | str | os.PathLike | None, error: BaseException) -> str:
    """Return why a pickled file is not read, in place of torch's advice to run what is in it."""
    named = sorted({one or other for one, other in re.findall(r"GLOBAL (\S+)|class(?:es)? (\S+)", str(error))})
    objects = ", ".join(named) or "something else"
    return (
        f"the pickled files of {source} (such as pytorch_model.bin) hold {objects} beside tensors, and reading such can run any "
        "code, so they are not read; ask whoever made them for safetensors."
    )


def _missing(source: Source | str, error: OSError) -> OSError:
    """Return what cannot be read of a folder or of the Hub, in one sentence."""
    folder = source.folder if isinstance(source, Source) else Path(source)
    if folder is not None and folder.exists():
        if "safetensors" in str(error) and not any(folder.glob("*.safetensors")):
            return FileNotFoundError(_no_weights(str(source)))
        return error if error.errno is not None else FileNotFoundError(f"{source}: {first_line(error)}.")
    if "use_safetensors" in str(error):  # our own sentence on pickled weights
        return error
    if is_offline_mode():
        return FileNotFoundError(
            f"{source} is not a folder here and not all of it is in the cache ({constants.HF_HUB_CACHE}), and "
            "HF_HUB_OFFLINE is set; load it once without that, or give a folder."
            f"{_nearest_folder(str(source))}"
        )
    return FileNotFoundError(
        f"there is no folder {source} here{_nearest_folder(str(source))}, and as a Hub id it gives: {first_line(error)}."
    )


def _no_weights(source: str) -> str:
    return (
        f"{source} holds no {WEIGHTS}. Pickled weights (pytorch_model.bin) can run any code while they are read, so they are "
        "not looked at; ask for safetensors, or where you trust whoever made them, load them in Python with "
        "use_safetensors=False and save the model again."
    )


# Configurations ------------------------------------------------------------------------------------------------------


def load_config(source: Source | str | os.PathLike, *, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Load the configuration of a model.

    Raises:
        LoadingError: for a config.json that is damaged or names code of its own, unless `trust_remote_code`.
        FileNotFoundError: where there is none.
    """
    source = _source(source)
    if (values := source.read_json("config.json")) is not None:
        check_config(values, source, trust_remote_code=trust_remote_code)
    with friendly_loading_errors(source, "config.json"):
        return AutoConfig.from_pretrained(
            source.name, revision=source.revision, trust_remote_code=bool(trust_remote_code)
        )


def _source(source: Source | str | os.PathLike) -> Source:
    return source if isinstance(source, Source) else locate(source)


def check_config(values: Mapping[str, Any], source: Source, *, trust_remote_code: bool = False) -> None:
    """Refuse a config.json that needs code of its own, or that transformers would stumble over.

    Raises:
        LoadingError: naming the field.
    """
    model_type, code = values.get("model_type"), values.get("auto_map")
    code = {} if code is None else code
    if not isinstance(code, dict):
        raise LoadingError(f"the config.json of {source} is damaged: auto_map={code!r:.60} is not an object.")
    known = isinstance(model_type, str) and model_type in CONFIG_MAPPING
    if "AutoConfig" in code and not known and not trust_remote_code:
        raise RemoteCodeError(
            f"the config.json of {source} names code of its own ({str(code['AutoConfig']):.100}), which is not run unasked"
        )
    if not known and "AutoConfig" not in code:
        kind = "names no model_type" if model_type is None else f"has the model_type {model_type!r:.60}"
        raise LoadingError(
            f"the config.json of {source} {kind}, so transformers does not know what it is; give another folder, or update "
            "transformers where the model is newer."
        )
    # names of files and of code from elsewhere
    backend = values.get("attn_implementation", values.get("_attn_implementation"))
    if isinstance(backend, str) and "/" in backend and not trust_remote_code:
        raise RemoteCodeError(
            f"the config.json of {source} names attention code of the Hub ({backend:.60}), which is not run unasked"
        )
    others = values.get("configuration_files", [])
    if not isinstance(others, list) or not all(isinstance(x, str) and Path(x).name == x for x in others):
        raise LoadingError(
            f"the config.json of {source} names configuration_files outside its folder; remove the field."
        )
    for name in ("dtype", "torch_dtype"):
        dtype = values.get(name)
        if dtype is not None and not (
            isinstance(dtype, str) and isinstance(getattr(torch, dtype.removeprefix("torch."), None), torch.dtype)
        ):
            raise LoadingError(
                f"the config.json of {source} has {name}={dtype!r:.60}, which is not a type of torch; set it to float32."
            )
    for name in LAYER_COUNTS:
        if isinstance(count := values.get(name), int | float) and count > MOST_LAYERS:
            raise LoadingError(
                f"the config.json of {source} has {name}={count}, more than {MOST_LAYERS}; copy it again."
            )


_WHOLE = {"num_beams": 1, "num_return_sequences": 1, "max_length": 0, "max_new_tokens": 1, "min_length": 0}
_WHOLE |= {"min_new_tokens": 0, "top_k": 0, "no_repeat_ngram_size": 0, "num_beam_groups": 1}
_MOST_BEAMS = 1000
_BEAMS = ("num_beams", "num_return_sequences", "num_beam_groups")
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id")
_NUMBERS = ("length_penalty", "temperature", "top_p", "typical_p", "repetition_penalty", "diversity_penalty")
_SWITCHES = ("do_sample", "use_cache", "renormalize_logits")


def check_generation_config(source: Source | str | os.PathLike) -> None:
    """Refuse a generation_config.json that is damaged, which transformers would leave out without a word.

    Raises:
        LoadingError: naming the field.
    """
    source = _source(source)
    if (values := source.read_json("generation_config.json")) is None:
        return

    def refuse(name: str, must_be: str) -> None:
        raise LoadingError(
            f"the generation_config.json of {source} is damaged: {name}={values[name]!r:.60} must be {must_be}; correct it, or "
            "delete the file for the defaults."
        )

    for name, value in values.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is None:
            continue
        if name in _WHOLE and not (whole and value >= _WHOLE[name]):
            refuse(name, f"a whole number from {_WHOLE[name]} on")
        if name in _BEAMS and value > _MOST_BEAMS:
            refuse(name, f"at most {_MOST_BEAMS}, as each takes memory")
        if name == "max_length_over_source" and not whole:
            refuse(name, "a whole number")
        if name in _TOKENS:
            ids = value if isinstance(value, list) else [value]
            if not all(isinstance(each, int) and not isinstance(each, bool) for each in ids):
                refuse(name, "the number of a token")
        if name in _NUMBERS and (
            isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
        ):
            refuse(name, "a finite number")
        if name in _SWITCHES and not isinstance(value, bool):
            refuse(name, "true or false")
    with friendly_loading_errors(source, "generation_config.json"), quiet():
        GenerationConfig.from_dict(values)


# Models --------------------------------------------------------------------------------------------------------------


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
    source = _source(source)
    loaded = load_config(source, trust_remote_code=trust_remote_code) if config is None else config
    if model_class is None:
        model_class = AutoModelForSeq2SeqLM if loaded.is_encoder_decoder else AutoModelForCausalLM
    check_generation_config(source)
    weight_files(source)  # refuses a damaged index
    if source.folder is None and source.file("adapter_config.json") is not None:
        # transformers would load the base model that the adapter names, from wherever that is
        raise LoadingError(f"{source} is not a whole model: {ADAPTER}.")
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
    remedy = "copy config.json and weights from the same model"
    if found["mismatched_keys"]:
        name, in_file, in_model = min((str(name), tuple(a), tuple(b)) for name, a, b in found["mismatched_keys"])
        raise LoadingError(
            f"the weights in {source} do not fit its config.json: {name} is {format_shape(in_file)} in the weights and "
            f"{format_shape(in_model)} by config.json; {remedy}."
        )
    missing, unexpected = sorted(found["missing_keys"]), sorted(found["unexpected_keys"])
    known = {re.sub(r"\.\d+\.", ".N.", name) for name in model.state_dict()}
    # layers that config.json does not count; of other names transformers leaves out what its classes do not use
    layers = [name for name in unexpected if re.sub(r"\.\d+\.", ".N.", name) in known]
    for name in (*layers, *missing):
        if (place := re.match(r"(.*?)\.\d+\.", name)) is not None:
            stored, built = _layer_counts(place[1], model, layers, missing)
            if stored and stored != built:
                raise LoadingError(
                    f"the weights in {source} do not fit its config.json: {place[1]} has {stored} layers in the weights and "
                    f"{built} by config.json; {remedy}."
                )
    if missing:
        raise LoadingError(f"the weights in {source} are not those of the model: {missing[0]} lacks; {remedy}.")
    if unexpected and model.config.model_type == "vanilla_transformer":
        raise LoadingError(
            f"the weights in {source} are not those of the model: config.json has no place for {unexpected[0]}; {remedy}."
        )


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape as people read it, such as `512 x 64`."""
    return " x ".join(map(str, shape)) or "a number"


def _layer_counts(place: str, model: PreTrainedModel, extra: list[str], missing: list[str]) -> tuple[int, int]:
    """Return how many layers the weights have below a name, and how many the model has."""

    def numbers(names: Any) -> set[int]:
        found = (re.match(rf"{re.escape(place)}\.(\d+)\.", name) for name in names)
        return {int(match[1]) for match in found if match}

    names = set(model.state_dict())
    return len(numbers((names - set(missing)) | set(extra))), len(numbers(names))


# Tokenizers ----------------------------------------------------------------------------------------------------------


def has_tokenizer(source: Source | str | os.PathLike) -> bool:
    """Return whether there is a file of a tokenizer."""
    source = source if isinstance(source, Source) else locate(source, needs=None)
    if source.folder is not None and any(source.folder.glob("tokenizer*")):
        return True
    return any(source.file(name) is not None for name in TOKENIZER_FILES)


def has_target_tokenizer(model: Source | str | os.PathLike, revision: str | None = None) -> bool:
    """Return whether a folder or repository holds a tokenizer of the target side beside that of the source."""
    source = model if isinstance(model, Source) else locate(model, revision=revision, needs=None)
    return source.file(f"{TARGET_TOKENIZER}/tokenizer_config.json") is not None


def load_tokenizer(
    source: Source | str | os.PathLike, subfolder: str = "", *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Load a tokenizer.

    Args:
        source: of [`locate`], a folder or a Hub id, which need not hold a model.
        subfolder: of it, such as `target_tokenizer`.
        trust_remote_code: run code of the folder where its tokenizer needs it.

    Raises:
        LoadingError: for files that are damaged, or that name code of their own, unless `trust_remote_code`.
        FileNotFoundError: where there is no tokenizer.
        ImportError: for a package that it needs.
    """
    source = source if isinstance(source, Source) else locate(source, needs=None)
    place = f"{subfolder} of {source}" if subfolder else str(source)
    if source.folder is not None:
        folder = source.folder / subfolder
        if not folder.is_dir() or not has_tokenizer(Source(str(folder), folder)):
            raise FileNotFoundError(f"{place} holds no tokenizer; save it there with tokenizer.save_pretrained.")
    prefix = f"{subfolder}/" if subfolder else ""
    if source.folder is None and all(source.file(prefix + name) is None for name in TOKENIZER_FILES):
        raise _missing(source, FileNotFoundError(f"there is no tokenizer in {place}"))
    settings = source.read_json(f"{prefix}tokenizer_config.json") or {}
    longest = settings.get("model_max_length")
    if longest is not None and (isinstance(longest, bool) or not isinstance(longest, int | float) or longest < 1):
        raise LoadingError(
            f"the tokenizer_config.json of {place} is damaged: model_max_length={longest!r:.60} must be a number of at least 1; "
            "correct it, or leave it out."
        )
    own_code = _own_code(settings, place)
    for name in ("special_tokens_map.json", "added_tokens.json", "tokenizer.json"):
        values = source.read_json(prefix + name)
        if name == "tokenizer.json" and values is not None and not isinstance(values.get("model"), dict):
            raise LoadingError(f"tokenizer.json of {place} is damaged, as it has no model; copy it again.")
    config = _config_of_tokenizer(source, subfolder)
    if own_code and not trust_remote_code and not _is_known(settings, config):
        raise RemoteCodeError(
            f"the tokenizer_config.json of {place} names code of its own ({own_code:.100}), which is not run unasked"
        )
    options: dict[str, Any] = {} if trust_remote_code else {"config": config}
    try:
        with friendly_loading_errors(source, "tokenizer"):
            return AutoTokenizer.from_pretrained(
                source.name,
                subfolder=subfolder,
                revision=source.revision,
                trust_remote_code=bool(trust_remote_code),
                **options,
            )
    except ImportError as error:
        needed = next((name for name in TOKENIZER_PACKAGES if name in str(error).lower()), None)
        if needed is None:
            raise
        raise ImportError(missing(f"the tokenizer of {place}", needed)) from error


def _own_code(settings: Mapping[str, Any], place: str) -> str:
    """Return the code that a tokenizer_config.json names, or an empty text."""
    code = settings.get("auto_map")
    if isinstance(code, dict):
        code = code.get("AutoTokenizer")
    if code is not None and not isinstance(code, str | list | tuple):
        raise LoadingError(f"the tokenizer_config.json of {place} is damaged: auto_map={code!r:.60}; copy it again.")
    names = [code] if isinstance(code, str) else [str(name) for name in code or [] if name]
    return ", ".join(names)


def _config_of_tokenizer(source: Source, subfolder: str) -> PreTrainedConfig:
    """Return the model's configuration, by which transformers chooses a class; a plain one where it cannot be read."""
    if subfolder:
        return PreTrainedConfig()
    try:
        return load_config(source)
    except (LoadingError, OSError):
        return PreTrainedConfig()


def _is_known(settings: Mapping[str, Any], config: PreTrainedConfig) -> bool:
    """Return whether transformers has a class for a tokenizer that names code of its own."""
    name = settings.get("tokenizer_class")
    if type(config) in TOKENIZER_MAPPING:
        return True
    return isinstance(name, str) and tokenizer_class_from_name(name) is not None


# Devices -------------------------------------------------------------------------------------------------------------


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
