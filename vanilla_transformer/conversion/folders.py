"""Convert a folder or repository of one kind of model to a folder of the other, checked before it appears."""

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from vanilla_transformer.conversion import convert
from vanilla_transformer.conversion.exact_loading import load_transformers_model, load_vanilla_model
from vanilla_transformer.conversion.fairseq import from_fairseq
from vanilla_transformer.conversion.opennmt import from_opennmt, opennmt_vocabularies
from vanilla_transformer.conversion.parity import check_parity
from vanilla_transformer.conversion.tokenizers import (
    FAIRSEQ_SPECIAL,
    OPENNMT_SPECIAL,
    copy_tokenizers,
    fairseq_dictionary,
    word_tokenizer,
)
from vanilla_transformer.conversion.torch_checkpoints import read_checkpoint
from vanilla_transformer.conversion.weight_mapping import ConversionError
from vanilla_transformer.loading import TARGET_TOKENIZER, locate
from vanilla_transformer.utils.atomic import atomic_dir, check_output_dir, translate_io_errors
from vanilla_transformer.utils.log import Log

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
    log: Log = print,
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
        log: gets a line for each step.

    Raises:
        ConversionError: where the model cannot be converted or the converted one computes something else.
        FileExistsError: where `output` holds something.
        OSError: where it cannot be read or written.
    """
    output = check_output_dir(output)
    if kind not in ("transformers", "fairseq", "opennmt"):
        raise ConversionError(f"--kind {kind} is unknown; it is transformers, fairseq or opennmt.")
    # the converted model, and the one to compare it with where its package is at hand
    reference: PreTrainedModel | None = None
    if kind == "fairseq":
        converted: PreTrainedModel = from_fairseq(
            model, source_dictionary=source_dictionary, target_dictionary=target_dictionary, log=log
        )
    elif kind == "opennmt":
        converted = from_opennmt(model)
    elif to_transformers:
        source = locate(model, revision=revision)
        reference = load_vanilla_model(source)
        converted = convert.to_transformers(reference, family, log=log)
    else:
        source = locate(model, revision=revision)
        reference = load_transformers_model(source, None, log, trust_remote_code=trust_remote_code)
        converted = convert.from_transformers(reference, log=log)
    with translate_io_errors(output, "make room and convert again"), atomic_dir(output) as temporary:
        # tokenizers, which tell whether vocabularies of as many tokens are two
        if kind == "transformers":
            separate = getattr(converted.config, "target_vocab_size", None) is not None
            split = False if to_transformers else separate or None
            became_two = copy_tokenizers(source, temporary, split=split, log=log, trust_remote_code=trust_remote_code)
            if became_two and not separate:
                converted = _of_separate_vocabularies(converted)
        converted.save_pretrained(temporary)
        # vocabularies of other packages
        if kind == "opennmt":  # its vocabularies are in the checkpoint
            _save_vocabularies(*opennmt_vocabularies(read_checkpoint(model), model), OPENNMT_SPECIAL, temporary)
        elif source_dictionary is not None:
            target = fairseq_dictionary(target_dictionary or source_dictionary)
            _save_vocabularies(fairseq_dictionary(source_dictionary), target, FAIRSEQ_SPECIAL, temporary)
        elif kind == "fairseq":
            log("without --source-dictionary, the converted model has no tokenizer.")
        # what was saved computes the same
        saved = type(converted).from_pretrained(temporary, dtype=converted.dtype)
        if reference is None:
            _check_saved(converted, saved)
            log(f"{kind} is not at hand to compare outputs with; all weights are placed, and saved as they were.")
        else:
            pair = (saved, reference) if to_transformers else (reference, saved)
            try:
                log(f"checked: {check_parity(*pair)}")  # type: ignore[arg-type]
            except (LookupError, RuntimeError) as error:  # which are none of writing
                raise ConversionError(f"the two models could not be compared: {error}") from error
    log(f"{type(converted).__name__} saved in {output}")
    return output


def _of_separate_vocabularies(model: Any) -> PreTrainedModel:
    """Return the same model, where the vocabularies have as many tokens, so that their sizes did not tell that they are two."""
    config = copy.deepcopy(model.config)
    config.target_vocab_size = config.output_vocab_size
    separate = convert.build_vanilla_model(type(model), config, model.state_dict(), model.dtype, type(model).__name__)
    if separate.can_generate():
        separate.generation_config = model.generation_config
    return separate


def _save_vocabularies(source: list[str], target: list[str], special: dict[str, str], folder: Path) -> None:
    """Save the source's vocabulary, and where they differ the target's beside it, as recipes keep it."""
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
