"""Whether two models compute the same: on random inputs, padded on either side, and in what they generate."""

import copy
import math
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel
from vanilla_transformer.utils.quiet import quiet

from .convert import family_of
from .family import Family
from .links import ConversionError
from .rewriting import sines_first

__all__ = ["TOLERANCE", "Equality", "check_equality", "measure_equality"]

TOLERANCE = 1e-4
"""Largest difference of logits and hidden states, in float32."""

LENGTHS = (9, 5, 7)
"""Of the rows of a batch, so that two are padded."""


@dataclass
class Equality:
    """How far two models are apart.

    Attributes:
        states: the largest difference of any hidden state, at tokens.
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


def check_equality(theirs: PreTrainedModel, ours: VanillaTransformerPreTrainedModel) -> Equality:
    """[`measure_equality`], and an error where the models differ.

    Raises:
        ConversionError: with all that was measured.
    """
    measured = measure_equality(theirs, ours)
    if not measured.holds():
        raise ConversionError(
            f"{type(theirs).__name__} and {type(ours).__name__} do not compute the same ({measured}); at most {TOLERANCE} is "
            "allowed."
        )
    return measured


@torch.no_grad()
def measure_equality(theirs: PreTrainedModel, ours: VanillaTransformerPreTrainedModel) -> Equality:
    """Compare a model of a family with one of ours, in float32.

    Batches hold random tokens in rows of several lengths, padded on the right, then on the left. Greedy search and 4 beams
    write 12 tokens, or as many as there are positions for.

    Args:
        theirs, ours: in either order of conversion; left as they are.
    """
    theirs, ours = _in_float32(theirs), _in_float32(ours)
    generator = torch.Generator().manual_seed(0)
    new_tokens = int(min(12, _positions(ours) - max(_lengths(ours))))
    measured = Equality()
    with quiet():
        for side in ("right", "left"):
            batch = _batch(ours, side, generator)
            _compare_forward(theirs, ours, batch, measured)
            # encoders that count padding would see other positions on the left; and what differs by now needs no more proof
            generates = theirs.can_generate() and measured.holds()
            if generates and side == ("right" if ours.config.is_encoder_decoder else "left"):
                for method, beams in (("greedy", 1), ("4 beams", 4)):
                    prompt = {name: batch[name] for name in ("input_ids", "attention_mask")}
                    written = [_write(model, prompt, beams, new_tokens) for model in (theirs, ours)]
                    measured.generated[method] = torch.equal(*written)
    return measured


def _in_float32(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model in float32: itself, or a copy of one in half precision.

    transformers rounds tables that follow from a formula (sinusoids) to the dtype of the weights. The copy computes them again,
    so that what is compared is the model that the weights define and not the rounding of its positions.
    """
    if model.dtype == torch.float32:
        return model.eval()
    if isinstance(model, VanillaTransformerPreTrainedModel) or not (computed := family_of(model)[0].computed):
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
    "assistant_early_exit",
    "constraints",
    "diversity_penalty",
    "dola_layers",
    "force_words_ids",
    "length_penalty_form",
    "max_time",
    "num_beam_groups",
    "num_return_sequences",
    "penalty_alpha",
    "prompt_lookup_num_tokens",
    "return_dict_in_generate",
    "stop_strings",
    "use_mtp",
    "watermarking_config",
)


def _write(model: PreTrainedModel, prompt: dict[str, torch.Tensor], beams: int, new_tokens: int) -> torch.Tensor:
    """Tokens of greedy or beam search, with those settings of the model that hold in either."""
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
    ends = torch.tensor([-1] if settings.eos_token_id is None else settings.eos_token_id, device=written.device).view(
        -1
    )
    has_ended = torch.isin(written, ends).long().cumsum(1) - torch.isin(written, ends).long() > 0
    # what stands behind the end is padding for some classes, and the end token again for others
    return written.masked_fill(has_ended, -1)


def _compare_forward(
    theirs: PreTrainedModel,
    ours: VanillaTransformerPreTrainedModel,
    batch: dict[str, torch.Tensor],
    measured: Equality,
) -> None:
    their_inputs, our_inputs = {**batch, "use_cache": False}, {**batch, "use_cache": False}
    family, _ = family_of(theirs)
    masks = {"": "attention_mask", "decoder_": "decoder_attention_mask"}
    for prefix, name in masks.items():
        if (mask := batch.get(name)) is None:
            continue
        if family.counts_padding:
            our_inputs[f"{prefix}position_ids"] = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
        elif ours.config.architecture == "decoder-only":
            their_inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    if not ours.config.is_decoder and not ours.config.is_encoder_decoder:
        del their_inputs["use_cache"], our_inputs["use_cache"]
    one, other = (
        model(**inputs, output_hidden_states=True) for model, inputs in ((theirs, their_inputs), (ours, our_inputs))
    )
    order = _order_of_states(family, ours)
    target = batch.get("decoder_attention_mask", batch["attention_mask"])
    states = {"hidden_states": batch["attention_mask"]}
    if ours.config.is_encoder_decoder:
        states = {"encoder_hidden_states": batch["attention_mask"], "decoder_hidden_states": target}
    for name, mask in states.items():
        if len(one[name]) != len(other[name]):
            raise ConversionError(f"{name} are {len(one[name])} and {len(other[name])}: the models differ in depth.")
        for their_states, our_states in zip(one[name], other[name], strict=True):
            our_states = our_states if order is None else our_states[..., order]
            measured.states = _largest(measured.states, their_states, our_states, mask)
    if getattr(other, "logits", None) is not None and getattr(one, "logits", None) is not None:
        measured.logits = _largest(measured.logits, one.logits, other.logits, target)
    elif hasattr(one, "prediction_logits"):
        measured.logits = _largest(measured.logits, one.prediction_logits, other.logits, target)


def _order_of_states(family: Family, ours: VanillaTransformerPreTrainedModel) -> torch.Tensor | None:
    """Return our columns in the order of theirs, where the family has the same sinusoids in another order; else None."""
    config = ours.config
    permuted = (
        config.position_encoding == "sinusoidal"
        and (config.sinusoidal_form, family.fixed.get("sinusoidal_form")) == ("interleaved", "concatenated")
        and config.embedding_width == config.hidden_size
    )
    return sines_first(config.hidden_size).to(ours.device) if permuted else None


def _largest(sofar: float, one: torch.Tensor, other: torch.Tensor, mask: torch.Tensor) -> float:
    """Of differences until now and those of (B, T, ...) where `mask` (B, T) is set; not a number where one is none."""
    difference: float = (one - other)[mask.bool()].abs().max().item()
    return difference if math.isnan(difference) else max(sofar, difference)


def _positions(ours: VanillaTransformerPreTrainedModel) -> float:
    """How long a sequence can be."""
    return ours.config.max_position_embeddings if ours.config.position_encoding == "learned" else math.inf


def _lengths(ours: VanillaTransformerPreTrainedModel) -> list[int]:
    """Of the rows of a batch; where the table of positions is short, half of it is left for what is written."""
    longest = max(1, _positions(ours) / 2)
    return [int(min(length, longest)) for length in LENGTHS]


def _batch(ours: VanillaTransformerPreTrainedModel, side: str, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Random tokens, none of which is special, padded on one side."""
    config, device = ours.config, ours.device
    batch = {}
    sizes = {"": config.vocab_size} | ({"decoder_": config.output_vocab_size} if config.is_encoder_decoder else {})
    for prefix, size in sizes.items():
        special = {config.pad_token_id, config.bos_token_id, config.decoder_start_token_id}
        special |= set(config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id])
        ordinary = torch.tensor([token for token in range(size) if token not in special])
        # of a target other lengths than of its source
        lengths = _lengths(ours)
        lengths = lengths if not prefix else [max(1, length - 2) for length in reversed(lengths)]
        width = max(lengths)
        pad = 0 if config.pad_token_id is None else config.pad_token_id
        ids = torch.full((len(lengths), width), pad)
        mask = torch.zeros(len(lengths), width, dtype=torch.long)
        for row, length in enumerate(lengths):
            place = slice(width - length, width) if side == "left" else slice(0, length)
            ids[row, place] = ordinary[torch.randint(len(ordinary), (length,), generator=generator)]
            mask[row, place] = 1
        batch[f"{prefix}input_ids"] = ids.to(device)
        batch[f"{prefix}attention_mask"] = mask.to(device)
    if config.type_vocab_size > 1:
        types = torch.randint(config.type_vocab_size, batch["input_ids"].shape, generator=generator)
        batch["token_type_ids"] = types.to(device)
    return batch
