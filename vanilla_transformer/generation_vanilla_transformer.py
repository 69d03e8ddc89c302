# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""What the paper decodes by and transformers' `generate()` lacks (section 6.1), and checks of caches."""

import copy
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache, StaticLayer
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.import_utils import is_tracing

from .sequences_vanilla_transformer import check_mask


def new_cache(config: Any) -> Cache:
    """Return an empty cache of the decoder of a model."""
    own = DynamicCache(config=config)
    return EncoderDecoderCache(own, DynamicCache()) if config.is_encoder_decoder else own


def prepare_cache(cache: Any, inputs: Tensor, source: Tensor | None) -> None:
    """Refuse a cache without room for inputs (B, T, ...), or one of another source than (B, S, D).

    A sliding window is one over the target: layers of cross-attention that would cut the source, and those whose keys
    cannot be read back, are replaced while they are empty; transformers makes them for any config with `sliding_window`.
    """
    if isinstance(cache, (tuple, list)):
        raise ValueError(f"cache is a {type(cache).__name__}: give a Cache of transformers, such as DynamicCache().")
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    if isinstance(own, Cache) and own.layers and type(own.layers[0]) is StaticLayer and not is_tracing(inputs):
        seen, room = own.layers[0].cumulative_length, own.layers[0].max_cache_len
        needed = inputs.shape[1] + (int(seen) if seen.device.type == "cpu" else 0)  # reading it would stall others
        if needed > room:
            raise ValueError(f"a static cache of max_cache_len={room} has no room for {needed} positions.")
    if source is None or not isinstance(cache, EncoderDecoderCache):
        return
    length, layers = source.shape[1], cache.cross_attention_cache.layers
    if any(cache.is_updated.values()):
        held = getattr(cache, "source_length", length)
        if held != length:
            raise ValueError(
                f"the cache holds keys and values of a source of {held} positions, and this source has {length}; "
                "give each source a cache of its own."
            )
        return
    cache.source_length = length
    for index, layer in enumerate(layers):
        if type(layer) is StaticLayer and layer.max_cache_len < length:
            raise ValueError(
                f"a static cross-attention cache of max_cache_len={layer.max_cache_len} has no room for a source of "
                f"{length} positions."
            )
        if type(layer) not in (DynamicLayer, StaticLayer):
            layers[index] = StaticLayer(max_cache_len=length) if layer.is_compileable else DynamicLayer()


def places_in_rows(config: Any, cache: Any, inputs: Tensor, mask: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the places in a row of inputs (T,) behind a cache and, by kind of layer, of the keys that they see (S,).

    A mask that does not fit them is refused.
    """
    length = tokens = keys = inputs.shape[1]
    past_length, kinds = 0, config.attention_kinds
    sizes = dict.fromkeys(kinds, (length, 0))  # how many keys, and the place of the first
    if isinstance(cache, Cache):
        past_length = cache.get_seq_length()
        sizes = {kind: cache.get_mask_sizes(length, kinds.index(kind)) for kind in sizes}
        keys = sizes[kinds[0]][0]
        tokens = None if cache.is_compileable else past_length + length
    elif cache is not None:  # that of continuous batching, which comes with positions and no mask
        check_continuous_batching(config)
        mask = None
    check_mask("attention_mask", mask, length, keys, tokens)
    queries = torch.arange(length, device=inputs.device) + past_length
    return queries, {k: torch.arange(n, device=inputs.device) + first for k, (n, first) in sizes.items()}


# settings of generation that transformers does not know
OWN_SETTINGS = ("max_length_over_source", "length_penalty_form", "decoding_dtype")


class SourceLengthCriteria(StoppingCriteria):
    """Ends each row when it has as many new tokens as its own source has tokens, plus a margin (section 6.1).

    Args:
        limits: (B,), largest number of new tokens of every source.
        prompt_length: number of decoder tokens that were given, the start token among them.
    """

    def __init__(self, limits: Tensor, prompt_length: int):
        self.limits = limits
        self.prompt_length = prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        # rows are sources, times beams or returned sequences
        limits = self.limits.to(input_ids.device).repeat_interleave(input_ids.shape[0] // len(self.limits))
        return input_ids.shape[1] - self.prompt_length >= limits


class GnmtLengthPenalty(float):
    """An alpha with which `length**alpha` is `((5 + length) / 6) ** alpha`.

    transformers divides the log-probability of a hypothesis by `length**length_penalty`, and bounds what running beams
    can still reach by the same expression; as a number that changes the expression, this penalty holds in both places.
    """

    def __rpow__(self, length: Any) -> Any:  # type: ignore[override]
        return ((5 + length) / 6) ** float(self)


def check_continuous_batching(config: Any) -> None:
    """Refuse what continuous batching does not serve."""
    refused = {
        "architecture": config.architecture != "decoder-only",
        "shared_layers": config.shared_layers,
        "position_encoding": config.has_position_bias,
    }
    for name in (name for name, is_refused in refused.items() if is_refused):
        raise ValueError(
            f"continuous batching (generate_batch) does not serve {name}={getattr(config, name)!r}; use generate()."
        )


class VanillaTransformerGenerationMixin(GenerationMixin):
    """`generate()` with two more settings, each in the call or in `generation_config`, and saved with it.

    `max_length_over_source = n`: no output of an encoder-decoder has more tokens than its own source plus n, whatever
    else stands in the batch; the paper has n = 50 (section 6.1). A `max_length` or `max_new_tokens` in the call
    replaces it.

    `length_penalty_form`: what the log-probability of a hypothesis is divided by in beam search. `"power"`:
    `length ** length_penalty`, as in transformers. `"gnmt"`: `((5 + length) / 6) ** length_penalty`, which the paper
    uses with 0.6 (section 6.1, Wu et al. 2016, equation 14).

    And `shortlist`, in the call alone: a [`~vanilla_transformer.decoding.Shortlist`], which says from the source which
    tokens can be written, so that fast decoding computes no logits of others; other decoding computes all.

    Attributes:
        decoding_backend: what decodes in place of transformers' loops where it can, set by the installed package; `None`
            where there is only this file.
        decoding_dtype: of the products of the current call; see `optimize_for_inference`.
        last_decoding: which of them ran in the last call of `generate()`, and why; `None` without a backend.
    """

    decoding_backend: ClassVar[Any] = None
    last_decoding: Any = None
    decoding_dtype: str = "float32"

    @staticmethod
    def create_masks_for_generate(
        config: Any, inputs_embeds: Any, attention_mask: Any, cache: Any, position_ids: Any = None, **kwargs: Any
    ) -> Any:
        """Return the mask of a static cache, made ahead as in transformers; where layers differ, the model makes theirs."""
        kinds = set(config.attention_kinds)
        if len(kinds) > 1:
            return attention_mask
        create = create_causal_mask if kinds == {"full_attention"} else create_sliding_window_causal_mask
        return create(config, inputs_embeds, attention_mask, cache, position_ids)

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Generate as in transformers, by the settings of the class; padding in a source without a mask is masked."""
        self._check_settings(generation_config, kwargs)
        if (outputs := kwargs.get("encoder_outputs")) is not None:
            # a copy, since beams are written into what is given; forwards take tuples as well
            parts = outputs if isinstance(outputs, dict) else BaseModelOutput(*outputs[:3])
            kwargs["encoder_outputs"] = BaseModelOutput(**parts)
        in_call = {name: kwargs.pop(name, None) for name in OWN_SETTINGS}

        def setting(name: str) -> Any:
            in_configs = [getattr(config, name, None) for config in (generation_config, self.generation_config)]
            return next((v for v in (in_call.get(name), kwargs.get(name), *in_configs) if v is not None), None)

        if self.config.is_encoder_decoder and kwargs.get("attention_mask") is None:
            kwargs["attention_mask"] = self._padding_mask(
                kwargs.get("input_ids") if inputs is None else inputs, setting("pad_token_id"), setting("eos_token_id")
            )
        changes: dict[str, Any] = {}
        form = setting("length_penalty_form")
        if form == "gnmt" and (setting("num_beams") or 1) > 1:
            penalty = setting("length_penalty")
            changes["length_penalty"] = GnmtLengthPenalty(1.0 if penalty is None else penalty)
        elif form not in (None, "power", "gnmt"):
            raise ValueError(f"length_penalty_form={form!r} is neither 'power' nor 'gnmt'.")
        margin = setting("max_length_over_source")
        caller_sets_length = any(
            kwargs.get(name) is not None or getattr(generation_config, name, None) is not None
            for name in ("max_length", "max_new_tokens")
        )
        if margin is not None and not self.config.is_encoder_decoder:
            raise ValueError("max_length_over_source needs a source; set max_new_tokens for a decoder-only model.")
        if margin is not None and not caller_sets_length:
            limits = (self._source_lengths(inputs, kwargs) + margin).clamp(min=1)
            start = setting("decoder_start_token_id")
            start = setting("bos_token_id") if start is None else start
            prompt_length, prompt = 1, kwargs.get("decoder_input_ids")
            if prompt is not None:
                # generate() puts the start token before prompts that lack it
                start = torch.as_tensor(start, device=prompt.device)
                prompt_length = prompt.shape[1] + int((prompt[:, 0] != start).all())
            criteria = SourceLengthCriteria(limits, prompt_length)
            stopping_criteria = StoppingCriteriaList([*(stopping_criteria or []), criteria])
            changes |= {"max_length": prompt_length + int(limits.max()), "max_new_tokens": None}
        if generation_config is None:
            kwargs |= changes
        else:
            generation_config = copy.deepcopy(generation_config)
            generation_config.update(**changes)
        self.decoding_dtype = setting("decoding_dtype") or "float32"
        shortlist = kwargs.pop("shortlist", None)
        if shortlist is not None:
            source = kwargs.get("input_ids") if inputs is None else inputs
            if not self.config.is_encoder_decoder or source is None or source.is_floating_point():
                raise ValueError("a shortlist needs the token ids of a source; leave it out.")
            shortlist = shortlist.tokens_for(source)
        with nullcontext() if self.decoding_backend is None else self.decoding_backend.call(self, shortlist):
            return super().generate(inputs, generation_config, logits_processor, stopping_criteria, **kwargs)

    def optimize_for_inference(self, dtype: str = "float32") -> "VanillaTransformerGenerationMixin":
        """Let `generate()` multiply by weights of this dtype, where fast decoding serves the model; return the model.

        The model's own weights stay, and are saved, as they are. The choice is kept in `generation_config.decoding_dtype`;
        `generate()` takes `decoding_dtype` too, for one call. `train()` refuses until it is `"float32"` again, since what
        training optimises would not be what decodes.

        Args:
            dtype: `"float32"`; `"bfloat16"`, where the processor has products of it; or `"int8"`, whose weights are
                scaled by rows and whose states by their largest value at every product.
        """
        if self.decoding_backend is not None:
            self.decoding_backend.check_dtype(dtype)
        self.generation_config.decoding_dtype = dtype
        return self.eval() if dtype != "float32" else self  # type: ignore[attr-defined]

    def train(self, mode: bool = True) -> Any:
        """Set the mode as in torch, but refuse to train weights that `optimize_for_inference` rounds."""
        dtype = getattr(getattr(self, "generation_config", None), "decoding_dtype", None) or "float32"
        if mode and dtype != "float32":
            raise ValueError(
                f"this model is optimized for inference in {dtype} and is not trained; call "
                'optimize_for_inference("float32") first.'
            )
        return super().train(mode)  # type: ignore[misc]

    def free_decoding_memory(self) -> int:
        """Free the copies of weights that fast decoding keeps for further calls; return how many bytes they took."""
        return 0 if self.decoding_backend is None else self.decoding_backend.free(self)

    def _sample(self, input_ids: Tensor, **kwargs: Any) -> Any:
        output = None if self.decoding_backend is None else self.decoding_backend.decode(self, input_ids, **kwargs)
        return super()._sample(input_ids, **kwargs) if output is None else output

    def _prepare_text_encoder_decoder_kwargs_for_generation(
        self,
        inputs_tensor: Tensor,
        model_kwargs: dict[str, Any],
        model_input_name: str | None,
        generation_config: GenerationConfig,
    ) -> dict[str, Any]:
        states = None
        if self.decoding_backend is not None:
            states = self.decoding_backend.encode(self, inputs_tensor, model_kwargs, generation_config)
        if states is not None:
            return {**model_kwargs, "encoder_outputs": states}
        return super()._prepare_text_encoder_decoder_kwargs_for_generation(
            inputs_tensor, model_kwargs, model_input_name, generation_config
        )

    def _check_settings(self, generation_config: GenerationConfig | None, kwargs: dict[str, Any]) -> None:
        """Refuse settings that transformers would fail on after work was done, or without naming them."""
        for name in ("num_beams", "num_return_sequences"):
            value = kwargs.get(name, getattr(generation_config, name, None))
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name}={value!r} must be an integer of at least 1.")
        cache = kwargs.get("cache_implementation", getattr(generation_config, "cache_implementation", None))
        if isinstance(cache, str) and cache.startswith("offloaded") and self.device.type == "cpu":
            raise ValueError(
                f"cache_implementation={cache!r} keeps a cache off an accelerator; this model is on a CPU."
            )

    @staticmethod
    def _padding_mask(tokens: Tensor | None, pad: int | None, eos: int | list[int] | None) -> Any:
        """Return (B, S), 0 at padding; `None` where there is none, or where it could be the end of the text."""
        if tokens is None or tokens.dim() != 2 or pad is None or pad in (eos if isinstance(eos, list) else [eos]):
            return None
        mask = tokens != pad
        return None if mask.all() else mask.long()

    def _source_lengths(self, inputs: Tensor | None, kwargs: dict[str, Any]) -> Tensor:
        """Return the number of source tokens without padding (B,)."""
        if (mask := kwargs.get("attention_mask")) is not None:
            return mask.sum(-1)
        given = (inputs, kwargs.get("input_ids"), kwargs.get("inputs_embeds"))
        source = next((source for source in given if source is not None), None)
        source = kwargs["encoder_outputs"][0] if source is None else source
        return torch.full((source.shape[0],), source.shape[1], device=source.device)

    def _prepare_decoder_input_ids_for_generation(
        self, batch_size: int, model_input_name: str, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        """Prepare as in transformers, and positions of padded prompts, which the 4D mask of a static cache does not tell."""
        ids, model_kwargs = super()._prepare_decoder_input_ids_for_generation(
            batch_size, model_input_name, model_kwargs, *args, **kwargs
        )
        mask = model_kwargs.get("decoder_attention_mask")
        if mask is not None and model_kwargs.get("decoder_position_ids") is None:
            model_kwargs["decoder_position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
        return ids, model_kwargs

    def _beam_search(self, input_ids: Tensor, *args: Any, generation_config: GenerationConfig, **kwargs: Any) -> Any:
        """Search as in transformers, but fill finished rows with the padding token also where its id, 0, is "false"."""
        if self.decoding_backend is not None:
            decode = self.decoding_backend.decode
            outputs = decode(self, input_ids, *args, generation_config=generation_config, **kwargs)
            if outputs is not None:
                return outputs
        wanted, generation_config = generation_config, copy.copy(generation_config)
        generation_config.return_dict_in_generate = True
        outputs = super()._beam_search(input_ids, *args, generation_config=generation_config, **kwargs)
        pad = generation_config._pad_token_tensor
        if pad is not None:
            written = outputs.sequences[:, input_ids.shape[1] :]
            # no beam wrote what stands behind the end
            written[outputs.beam_indices[:, : written.shape[1]] < 0] = pad.to(written)
        return outputs if wanted.return_dict_in_generate else outputs.sequences

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """Begin as in transformers, for the models that continuous batching serves."""
        check_continuous_batching(self.config)
        return super().init_continuous_batching(*args, **kwargs)

    def _reorder_cache(self, cache: Cache, beam_idx: Tensor) -> Cache:
        """Return the rows of the chosen beams; beams of one source have equal cross-attention keys and values, so those stay."""
        own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        own.reorder_cache(beam_idx)
        return cache
