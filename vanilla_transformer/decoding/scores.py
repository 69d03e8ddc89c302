"""The best of many scores, and what of transformers' logits processors and stopping criteria is done without calls."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.generation import logits_process as known
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

FEW = 8192
"""Scores of a row up to which torch's own selection is as fast."""

ROW_BY_ROW = {
    known.EpsilonLogitsWarper,
    known.EtaLogitsWarper,
    known.ExponentialDecayLengthPenalty,
    known.ForcedBOSTokenLogitsProcessor,
    known.ForcedEOSTokenLogitsProcessor,
    known.InfNanRemoveLogitsProcessor,
    known.LogitNormalization,
    known.MinPLogitsWarper,
    known.NoBadWordsLogitsProcessor,
    known.NoRepeatNGramLogitsProcessor,
    known.RepetitionPenaltyLogitsProcessor,
    known.SequenceBiasLogitsProcessor,
    known.TemperatureLogitsWarper,
    known.TopKLogitsWarper,
    known.TopPLogitsWarper,
    known.TypicalLogitsWarper,
}
"""Processors that treat every row by itself, so that finished rows can be left out."""


@lru_cache
def chunk_size(size: int) -> int:
    """Return into chunks of how many scores a vocabulary is divided, 0 where it is small or divides badly."""
    # multiples of a vector's length first
    sizes = (64, 80, 48, 96, *range(95, 31, -1))
    return 0 if size <= FEW else next((count for count in sizes if size % count == 0), 0)


def top_scores(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best `count` values and indices (rows, count) of scores (rows, V), best first, as `torch.topk` does.

    The best of all are among the chunks with the best maxima: several times faster than sorting a vocabulary.
    """
    chunk = chunk_size(scores.shape[1])
    if not chunk or count * chunk * 2 > scores.shape[1]:
        return scores.topk(count, dim=-1)
    parts = scores.unflatten(1, (-1, chunk))
    chunks = parts.amax(-1).topk(count, dim=-1).indices  # (rows, count)
    candidates = parts.gather(1, chunks.unsqueeze(-1).expand(-1, -1, chunk)).flatten(1)
    values, places = candidates.topk(count, dim=-1)
    return values, chunks.gather(1, places // chunk) * chunk + places % chunk


def best_tokens(scores: torch.Tensor) -> torch.Tensor:
    """Return the index (rows,) of the best of scores (rows, V), the first among equals, as `torch.argmax` does."""
    chunk = chunk_size(scores.shape[1])
    if not chunk:
        return scores.argmax(-1)
    parts = scores.unflatten(1, (-1, chunk))
    chunks = parts.amax(-1).argmax(-1)
    return parts[torch.arange(len(scores)), chunks].argmax(-1).add_(chunks, alpha=chunk)


def _suppressing(processor: Any) -> tuple[Callable[[int], bool], torch.Tensor] | None:
    """Return when, by length, and which tokens a processor forbids; `None` for one that does anything else."""
    if type(processor) is known.MinLengthLogitsProcessor:
        return (lambda length: length < processor.min_length), processor.eos_token_id
    if type(processor) is known.MinNewTokensLengthLogitsProcessor:
        least = processor.prompt_length_to_skip + processor.min_new_tokens
        return (lambda length: length < least), processor.eos_token_id
    if type(processor) is known.SuppressTokensLogitsProcessor:
        return (lambda length: True), processor.suppress_tokens
    if type(processor) is known.SuppressTokensAtBeginLogitsProcessor:
        return (lambda length: length == processor.begin_index), processor.begin_suppress_tokens
    return None


class Processors:
    """Logits processors of a call, of which those that only forbid tokens work in place.

    Attributes:
        reads_ids: whether any looks at more than the length of what has been written.
        row_by_row: whether rows can be left out.
    """

    def __init__(self, processors: LogitsProcessorList, vocab_size: int):
        # when and which tokens are forbidden, or else what has to be called
        self.steps: list[tuple[Any, Any, Any]] = []
        self.reads_ids, self.row_by_row = False, True
        for processor in processors:
            suppressing = _suppressing(processor)
            if suppressing is not None:
                applies, tokens = suppressing
                tokens = tokens.flatten()
                self.steps.append((applies, tokens[(tokens >= 0) & (tokens < vocab_size)], None))
                continue
            self.reads_ids = True
            per_row = isinstance(getattr(processor, "prompt_ignore_length", None), torch.Tensor)
            self.row_by_row = self.row_by_row and type(processor) in ROW_BY_ROW and not per_row
            self.steps.append((None, None, processor))

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores (rows, V) behind `ids` (rows, length); those given are overwritten."""
        for applies, tokens, processor in self.steps:
            if processor is not None:
                scores = processor(ids, scores)
            elif applies(ids.shape[1]):
                scores.index_fill_(1, tokens, -torch.inf)
        return scores


class Stops:
    """Stopping criteria of a call, of which those that wait for an end token or a length do without being called.

    Attributes:
        fills_up: whether rows that have ended are filled up.
    """

    def __init__(self, criteria: StoppingCriteriaList):
        self.fills_up = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        ends = [criterion.eos_token_id.flatten() for criterion in criteria if type(criterion) is EosTokenCriteria]
        self.ends = torch.cat(ends) if ends else None
        self.lengths = [criterion for criterion in criteria if type(criterion) is MaxLengthCriteria]
        known = (EosTokenCriteria, MaxLengthCriteria)
        self.others = StoppingCriteriaList(criterion for criterion in criteria if type(criterion) not in known)

    def __call__(self, ids: torch.Tensor, scores: Any) -> torch.Tensor:
        """Return which rows of `ids` (rows, length) have ended, (rows,)."""
        last, length = ids[:, -1], ids.shape[1]
        ended = None
        if self.ends is not None:
            ended = last == self.ends if len(self.ends) == 1 else torch.isin(last, self.ends)
        for limit in self.lengths:  # which warn beyond the positions of the model
            if length >= min(limit.max_length, limit.max_position_embeddings or limit.max_length):
                at_limit = limit(ids, scores)
                ended = at_limit if ended is None else ended | at_limit
        if self.others or ended is None:
            others = self.others(ids, scores)
            ended = others if ended is None else ended | others
        return ended
