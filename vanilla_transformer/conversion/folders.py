"""A folder or repository of one kind of model as a folder of the other, checked before it appears."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from vanilla_transformer.loading import TARGET_TOKENIZER, locate
from vanilla_transformer.utils.atomic import atomic_dir, check_output_dir, translate_io_errors

from .convert import build_ours, from_transformers, load_ours, load_theirs
from .convert import to_transformers as export
from .links import ConversionError
from .state_dicts import from_fairseq, from_opennmt, opennmt_vocabularies, read_checkpoint
from .tokenizers import copy_tokenizers
from .verify import check_equality
from .vocabularies import FAIRSEQ_SPECIAL, OPENNMT_SPECIAL, fairseq_dictionary, word_tokenizer

__all__ = ["convert_folder"]


def convert_folder(
    model: str | Path,
    output: str | Path,
    *,
    revision: str | None = None,
    to_transformers: bool = False,
    family: str | None = None,
    kind: str = "transformers",
    source_dictionary: Path | None = None,
    target_dictionary: Path | None = None,
    trust_remote_code: bool = False,
    say: Callable[[str], Any] = print,
) -> Path:
    """Convert a model and its tokenizer, check that both models compute the same, and only then let the folder appear.

    Args:
        model: a folder, an id on the Hub, or the file of a checkpoint of fairseq or OpenNMT-py.
        output: a folder that is not there, or empty.
        revision: of an id on the Hub.
        to_transformers, family: a model of ours becomes one of that family, by default of the first that can hold it.
        kind: `"transformers"`, `"fairseq"` or `"opennmt"`.
        source_dictionary, target_dictionary: of fairseq.
        trust_remote_code: run code that comes with the model, where its tokenizer cannot be loaded without.
        say: gets a line for each step.

    Raises:
        ConversionError: where the model cannot be converted or the converted one computes something else.
        FileExistsError: where `output` holds something.
        OSError: where it cannot be read or written.
    """
    output = check_output_dir(output)
    if kind not in ("transformers", "fairseq", "opennmt"):
        raise ConversionError(f"--kind {kind} is unknown; it is transformers, fairseq or opennmt.")
    reference: PreTrainedModel | None = None
    if kind == "fairseq":
        converted: PreTrainedModel = from_fairseq(
            model, source_dictionary=source_dictionary, target_dictionary=target_dictionary, report=say
        )
    elif kind == "opennmt":
        converted = from_opennmt(model, report=say)
    elif to_transformers:
        source = locate(model, revision=revision)
        reference = load_ours(source)
        converted = export(reference, family, report=say)  # type: ignore[arg-type]
    else:
        source = locate(model, revision=revision)
        reference = load_theirs(source, None, say, trust_remote_code=trust_remote_code)
        converted = from_transformers(reference, report=say)
    with translate_io_errors(output, "make room and convert again"), atomic_dir(output) as temporary:
        if kind == "transformers":
            separate = getattr(converted.config, "target_vocab_size", None) is not None
            split = False if to_transformers else separate or None
            became_two = copy_tokenizers(source, temporary, split=split, say=say, trust_remote_code=trust_remote_code)
            if became_two and not separate:
                converted = _of_separate_vocabularies(converted)
        converted.save_pretrained(temporary)
        if kind == "opennmt":  # its vocabularies are in the checkpoint
            _save_vocabularies(*opennmt_vocabularies(read_checkpoint(model), model), OPENNMT_SPECIAL, temporary)
        elif source_dictionary is not None:
            target = fairseq_dictionary(target_dictionary or source_dictionary)
            _save_vocabularies(fairseq_dictionary(source_dictionary), target, FAIRSEQ_SPECIAL, temporary)
        elif kind == "fairseq":
            say("without --source-dictionary, the converted model has no tokenizer.")
        saved = type(converted).from_pretrained(temporary, dtype=converted.dtype)
        if reference is None:
            _check_saved(converted, saved)
            say(f"{kind} is not at hand to compare outputs with; all weights are placed, and saved as they were.")
        else:
            pair = (saved, reference) if to_transformers else (reference, saved)
            try:
                say(f"checked: {check_equality(*pair)}")  # type: ignore[arg-type]
            except (LookupError, RuntimeError) as error:  # which are none of writing
                raise ConversionError(f"the two models could not be compared: {error}") from error
    say(f"{type(converted).__name__} saved in {output}")
    return output


def _of_separate_vocabularies(model: Any) -> PreTrainedModel:
    """The same model, where the vocabularies have as many tokens, so that their sizes did not tell that they are two."""
    config = copy.deepcopy(model.config)
    config.target_vocab_size = config.output_vocab_size
    separate = build_ours(type(model), config, model.state_dict(), model.dtype, type(model).__name__)
    if separate.can_generate():
        separate.generation_config = model.generation_config
    return separate


def _save_vocabularies(source: list[str], target: list[str], special: dict[str, str], folder: Path) -> None:
    """Where the vocabularies differ, the target's beside the source's, as recipes keep it."""
    # sources of OpenNMT-py end in nothing
    add_eos = special is FAIRSEQ_SPECIAL
    word_tokenizer(source, special, add_eos=add_eos).save_pretrained(folder)
    if source != target:
        word_tokenizer(target, special, add_eos=True).save_pretrained(folder / TARGET_TOKENIZER)


def _check_saved(model: PreTrainedModel, saved: PreTrainedModel) -> None:
    weights, others = model.state_dict(), saved.state_dict()
    wrong = [name for name in weights if name not in others or not torch.equal(weights[name], others[name])]
    if wrong:
        raise ConversionError(f"what was saved differs from what was converted in {', '.join(wrong[:20])}.")
