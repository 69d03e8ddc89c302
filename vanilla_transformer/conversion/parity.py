"""Compare two models: on random inputs, padded on either side, and in what they generate."""

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.conversion.architecture_adapter import ArchitectureAdapter
from vanilla_transformer.conversion.exact_loading import family_of
from vanilla_transformer.conversion.rewriting import sines_first
from vanilla_transformer.conversion.weight_mapping import ConversionError
from vanilla_transformer.generation.text_generator import pad_rows
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel
from vanilla_transformer.utils.quiet import quiet

__all__ = ["TOLERANCE", "ParityReport", "check_parity", "largest_difference", "measure_parity", "ordinary_tokens"]

TOLERANCE = 1e-4
"""Largest difference of logits and hidden states in float32, relative to the largest value where that is above 1.

Rounding changes a value in proportion to it, and so does another eps of norms.
"""

LENGTHS = (9, 5, 7)
"""Of the rows of a batch, so that two are padded."""


@dataclass
class ParityReport:
    """What was measured of two models that should compute the same.

    Attributes:
        states: the largest difference of any hidden state, at tokens; as of `largest_difference`.
        logits: of any logit; 0 for models without.
        generated: by method, whether both wrote the same tokens.
    """

    states: float = 0.0
    logits: float = 0.0
    generated: dict[str, bool] = field(default_factory=dict)

    def holds(self) -> bool:
        # not a number is not within any tolerance
        return self.states <= TOLERANCE and self.logits <= TOLERANCE and all(self.generated.values())

    def __str__(self) -> str:
        said = f"largest difference of logits {self.logits:.2g}, of hidden states {self.states:.2g}"
        for method, same in self.generated.items():
            said += f"; {method}: {'the same tokens' if same else 'other tokens'}"
        return said


def check_parity(source: PreTrainedModel, target: VanillaTransformerPreTrainedModel) -> ParityReport:
    """Measure how far two models are apart, see [`measure_parity`], and refuse those that differ.

    Raises:
        ConversionError: with all that was measured.
    """
    report = measure_parity(source, target)
    if not report.holds():
        raise ConversionError(
            f"{type(source).__name__} and {type(target).__name__} do not compute the same ({report}); at most {TOLERANCE} is "
            "allowed."
        )
    return report


@torch.no_grad()
def measure_parity(source: PreTrainedModel, target: VanillaTransformerPreTrainedModel) -> ParityReport:
    """Compare a model of a family of transformers with one of this package, in float32.

    Batches hold random tokens in rows of several lengths, padded on the right, then on the left. Greedy search and 4 beams
    write 12 tokens, or as many as there are positions for.

    Args:
        source, target: of transformers and of this package, whichever was converted to the other; left as they are.
    """
    source, target = _in_float32(source), _in_float32(target)
    generator = torch.Generator().manual_seed(0)
    new_tokens = int(min(12, _positions(target) - max(_lengths(target))))
    report = ParityReport()
    with quiet():
        for side in ("right", "left"):
            batch = _batch(target, side, generator)
            _compare_forward(source, target, batch, report)
            # encoders that count padding would see other positions on the left; and what differs by now needs no more proof
            generates = source.can_generate() and report.holds()
            if generates and side == ("right" if target.config.is_encoder_decoder else "left"):
                for method, beams in (("greedy", 1), ("4 beams", 4)):
                    prompt = {name: batch[name] for name in ("input_ids", "attention_mask")}
                    written = [_write(model, prompt, beams, new_tokens) for model in (source, target)]
                    report.generated[method] = torch.equal(*written)
    return report


def _in_float32(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model in float32: itself, or a copy of one in half precision.

    transformers rounds tables that follow from a formula (sinusoids) to the dtype of the weights. The copy computes them again,
    so that what is compared is the model that the weights define and not the rounding of its positions.
    """
    if model.dtype == torch.float32:
        return model.eval()
    if isinstance(model, VanillaTransformerPreTrainedModel) or not (computed := _family_of(model).computed):
        return copy.deepcopy(model).float().eval()
    prefix = "" if hasattr(model, "model") else "model."  # base models name their weights without it
    weights = {name: t.float() for name, t in model.state_dict().items() if prefix + name not in computed}
    exact = type(model).from_pretrained(
        None, config=copy.deepcopy(model.config), state_dict=weights, dtype=torch.float32
    )
    if exact.can_generate():
        exact.generation_config = model.generation_config
    return exact.to(model.device).eval()


# what makes `generate()` search in another way, stop by the clock, or return something else than one row of tokens
OTHER_SEARCHES = (
    *(
        "assistant_early_exit",
        "constraints",
        "diversity_penalty",
        "dola_layers",
        "force_words_ids",
        "length_penalty_form",
    ),
    *("max_time", "num_beam_groups", "num_return_sequences", "penalty_alpha", "prompt_lookup_num_tokens"),
    *("return_dict_in_generate", "stop_strings", "use_mtp", "watermarking_config"),
)


def _write(model: PreTrainedModel, prompt: dict[str, torch.Tensor], beams: int, new_tokens: int) -> torch.Tensor:
    """Return the tokens of greedy or beam search, with those settings of the model that hold in either."""
    settings = model.generation_config
    model.generation_config = copy.deepcopy(settings)
    for name in OTHER_SEARCHES:
        if getattr(settings, name, None) is not None:
            setattr(model.generation_config, name, None)
    try:
        tokens: torch.Tensor = model.generate(**prompt, num_beams=beams, do_sample=False, max_new_tokens=new_tokens)
    finally:
        model.generation_config = settings
    written = tokens[:, 1:] if model.config.is_encoder_decoder else tokens[:, prompt["input_ids"].shape[1] :]
    ends = -1 if settings.eos_token_id is None else settings.eos_token_id
    is_end = torch.isin(written, torch.tensor(ends, device=written.device)).long()
    has_ended = is_end.cumsum(1) - is_end > 0
    # what stands behind the end is padding for some classes, and the end token again for others
    return written.masked_fill(has_ended, -1)


def _compare_forward(
    source: PreTrainedModel,
    target: VanillaTransformerPreTrainedModel,
    batch: dict[str, torch.Tensor],
    report: ParityReport,
) -> None:
    family, config = _family_of(source), target.config
    of_source, of_target = dict[str, Any](batch), dict[str, Any](batch)
    # positions: where the family counts padding the target is told to, and else a decoder of transformers not to
    for prefix in ("", "decoder_"):
        if (mask := batch.get(f"{prefix}attention_mask")) is None:
            continue
        if family.counts_padding:
            of_target[f"{prefix}position_ids"] = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
        elif config.architecture == "decoder-only":
            of_source["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    options = {"output_hidden_states": True}
    if config.is_decoder or config.is_encoder_decoder:
        options["use_cache"] = False
    one, other = source(**of_source, **options), target(**of_target, **options)

    # states, at tokens
    order = _order_of_states(family, target)
    written = batch.get("decoder_attention_mask", batch["attention_mask"])
    states = {"hidden_states": batch["attention_mask"]}
    if config.is_encoder_decoder:
        states = {"encoder_hidden_states": batch["attention_mask"], "decoder_hidden_states": written}
    for name, mask in states.items():
        if len(one[name]) != len(other[name]):
            raise ConversionError(f"{name} are {len(one[name])} and {len(other[name])}: the models differ in depth.")
        for expected, found in zip(one[name], other[name], strict=True):
            found = found if order is None else found[..., order]
            report.states = _largest(report.states, expected, found, mask)

    # scores, which BERT's class of pre-training has under another name
    expected = one.get("logits", one.get("prediction_logits"))
    if expected is not None and other.get("logits") is not None:
        report.logits = _largest(report.logits, expected, other.logits, written)


def _family_of(model: PreTrainedModel) -> ArchitectureAdapter:
    return family_of(model.config.model_type, type(model).__name__)[0]


def _order_of_states(family: ArchitectureAdapter, target: VanillaTransformerPreTrainedModel) -> torch.Tensor | None:
    """Return the target's columns in the order of the source's, where both have the same sinusoids in another order."""
    config = target.config
    permuted = (
        config.position_encoding == "sinusoidal"
        and (config.sinusoidal_form, family.fixed.get("sinusoidal_form")) == ("interleaved", "concatenated")
        and config.embedding_width == config.hidden_size
    )
    return sines_first(config.hidden_size).to(target.device) if permuted else None


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference of two tensors, relative to the largest value of the first where that is above 1."""
    scale = max(1.0, one.float().abs().max().item())
    return (one.float() - other.float()).abs().max().item() / scale


def _largest(before: float, one: torch.Tensor, other: torch.Tensor, mask: torch.Tensor) -> float:
    """Return the largest of differences before and those of (B, T, ...) where `mask` (B, T) is set; NaN where one is NaN."""
    difference = largest_difference(one[mask.bool()], other[mask.bool()])
    return difference if math.isnan(difference) else max(before, difference)


def _positions(model: VanillaTransformerPreTrainedModel) -> float:
    """Return how long a sequence can be."""
    return model.config.max_position_embeddings if model.config.position_encoding == "learned" else math.inf


def _lengths(model: VanillaTransformerPreTrainedModel) -> list[int]:
    """Return the lengths of a batch's rows; where the table of positions is short, half is left for what is written."""
    longest = max(1, _positions(model) / 2)
    return [int(min(length, longest)) for length in LENGTHS]


def ordinary_tokens(config: VanillaTransformerConfig, size: int) -> torch.Tensor:
    """Return the ids, of so many, that are not special tokens."""
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    special = {config.pad_token_id, config.bos_token_id, config.decoder_start_token_id, *ends}
    return torch.tensor([token for token in range(size) if token not in special])


def _batch(model: VanillaTransformerPreTrainedModel, side: str, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Return a batch of random tokens, none of which is special, padded on one side."""
    config, lengths = model.config, _lengths(model)
    # of a target other lengths than of its source
    of_target = [max(1, length - 2) for length in reversed(lengths)]
    sides = {"": (config.vocab_size, lengths)}
    if config.is_encoder_decoder:
        sides["decoder_"] = (config.output_vocab_size, of_target)
    batch: dict[str, torch.Tensor] = {}
    for prefix, (size, row_lengths) in sides.items():
        tokens = ordinary_tokens(config, size)
        rows = [tokens[torch.randint(len(tokens), (length,), generator=generator)].tolist() for length in row_lengths]
        ids, mask = pad_rows(rows, config.pad_token_id or 0, side)
        batch |= {f"{prefix}input_ids": ids, f"{prefix}attention_mask": mask}
    if config.type_vocab_size > 1:
        shape = batch["input_ids"].shape
        batch["token_type_ids"] = torch.randint(config.type_vocab_size, shape, generator=generator)
    return {name: tensor.to(model.device) for name, tensor in batch.items()}
