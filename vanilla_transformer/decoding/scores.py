"""The best of many scores, and what of transformers' logits processors and stopping criteria is done without calls."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.generation import logits_process as known
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

CHUNK = 64
FEW = 2048
"""Scores of a row up to which torch's own selection is as fast."""

MANY = 6
"""Rows below which it is, too."""

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


def top_scores(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best `count` values and indices (rows, count) of scores (rows, V), best first, as `torch.topk` does.

    The best of all are among the chunks with the best maxima: for many rows several times faster than sorting them.
    """
    rows, size = scores.shape
    whole = size // CHUNK * CHUNK
    if rows < MANY or size <= FEW or count * CHUNK * 2 > size:
        return scores.topk(count, dim=-1)
    chunks = scores[:, :whole].unflatten(1, (-1, CHUNK)).amax(-1).topk(count, dim=-1).indices  # (rows, count)
    index = (chunks.unsqueeze(-1) * CHUNK + torch.arange(CHUNK)).flatten(1)
    if whole < size:
        index = torch.cat([index, torch.arange(whole, size).expand(rows, -1)], dim=1)
    values, places = scores.gather(1, index).topk(count, dim=-1)
    return values, index.gather(1, places)


def best_tokens(scores: torch.Tensor) -> torch.Tensor:
    """Return the index (rows,) of the best of scores (rows, V), the first among equals, as `torch.argmax` does."""
    rows, size = scores.shape
    whole = size // CHUNK * CHUNK
    if rows < MANY or size <= FEW:
        return scores.argmax(-1)
    maxima = scores[:, :whole].unflatten(1, (-1, CHUNK)).amax(-1)
    start = maxima.argmax(-1, keepdim=True) * CHUNK
    index = start + torch.arange(CHUNK)
    if whole < size:
        index = torch.cat([index, torch.arange(whole, size).expand(rows, -1)], dim=1)
    return index.gather(1, scores.gather(1, index).argmax(-1, keepdim=True)).squeeze(1)


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
