"""Greedy decoding and sampling, token by token as transformers' `_sample`, without rows that have ended."""

from functools import partial
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from vanilla_transformer.decoding.engine import Engine
from vanilla_transformer.decoding.scores import Processors, Stops, best_tokens


def worth_dropping(active: int, rows: int) -> bool:
    """Whether leaving ended rows out saves more than moving the others costs."""
    return active <= rows - max(1, rows // 8)


def _filled_cache(engine: Engine, config: Any) -> Cache:
    """Return the keys and values as a cache of transformers."""
    own = DynamicCache(config=config.get_text_config(decoder=True))
    keys, values = (states[:, :, :, : engine.cache.filled] for states in engine.cache.states)
    for index, (key, value) in enumerate(zip(keys, values, strict=True)):
        own.update(key, value, index)
    if engine.source is None:
        return own
    cross = DynamicCache()
    for index, (key, value) in enumerate(engine.source.pairs):
        cross.update(key, value, index)
    cache = EncoderDecoderCache(own, cross)
    cache.is_updated = dict.fromkeys(range(len(engine.source.pairs)), True)
    return cache


def sample(
    model: Any,
    engine: Engine,
    states: torch.Tensor,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: Any,
    streamer: Any = None,
) -> Any:
    """Return what `generate()` returns, given the last states (B, D) of the prompts `input_ids` (B, P)."""
    config, rows = generation_config, len(input_ids)
    wants_dict = config.return_dict_in_generate
    scores: tuple[torch.Tensor, ...] | None = () if wants_dict and config.output_scores else None
    raw_logits: tuple[torch.Tensor, ...] | None = () if wants_dict and config.output_logits else None
    processors = Processors(logits_processor, model.config.output_vocab_size)
    stops = Stops(stopping_criteria)
    needs_scores = config.do_sample or processors.reads_ids or scores is not None or raw_logits is not None
    may_drop = processors.row_by_row and stops.fills_up and not wants_dict
    unfinished, left = torch.ones(rows, dtype=torch.bool), rows
    active: torch.Tensor | None = None  # the rows that are still computed, where some are not
    probabilities = torch.empty(0)
    while True:
        # choose a token for every row that is still computed
        ids = input_ids if active is None else input_ids[active]
        if not needs_scores:
            tokens = engine.best_tokens(states, partial(processors, ids))
        else:
            logits = engine.logits(states)
            if raw_logits is not None:
                raw_logits += (logits.clone(),)
            chosen = processors(ids, logits)
            if scores is not None:
                scores += (chosen,)
            tokens = torch.empty(0) if config.do_sample else best_tokens(chosen)
        if config.do_sample:
            current = chosen.softmax(-1)
            # rows that were dropped draw too, for nothing, so that the others draw what they would beside them
            probabilities = current if active is None else probabilities.index_copy(0, active, current)
            tokens = torch.multinomial(probabilities, num_samples=1).squeeze(1)
        elif active is not None:
            tokens = torch.zeros(rows, dtype=torch.long).index_copy_(0, active, tokens)
        if stops.fills_up and left < rows:
            tokens = torch.where(unfinished, tokens, config._pad_token_tensor)
        # see which rows have ended
        input_ids = torch.cat([input_ids, tokens[:, None]], dim=-1)
        ended = stops(input_ids, scores)
        if streamer is not None:
            streamer.put(tokens.cpu())
        if bool(ended.any()):
            unfinished = unfinished & ~ended
            left = int(unfinished.sum())
        if left == 0:
            break
        computed = rows if active is None else len(active)
        if may_drop and worth_dropping(left, computed):
            kept = (unfinished if active is None else unfinished[active]).nonzero().squeeze(1)
            active = kept if active is None else active[kept]
            engine.keep_groups(kept)
        states = engine.step(tokens if active is None else tokens[active])
    if streamer is not None:
        streamer.end()
    if not wants_dict:
        return input_ids
    output = GenerateEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateDecoderOnlyOutput
    return output(sequences=input_ids, scores=scores, logits=raw_logits, cache=_filled_cache(engine, model.config))
