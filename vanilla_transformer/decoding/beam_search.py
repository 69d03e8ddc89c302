"""Beam search, step by step as transformers' `_beam_search`, without sentences that can no longer improve."""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria
from transformers.generation.utils import GenerateBeamDecoderOnlyOutput, GenerateBeamEncoderDecoderOutput

from vanilla_transformer.decoding.engine import Engine
from vanilla_transformer.decoding.sampling import worth_dropping
from vanilla_transformer.decoding.scores import Processors, Stops, top_scores
from vanilla_transformer.generation_vanilla_transformer import SourceLengthCriteria

NOTHING = -1e9
"""What transformers takes as the score of a hypothesis that there is not."""


@dataclass
class Hypotheses:
    """The best ended outputs of a sentence, best first."""

    most: int
    found: list[tuple[float, torch.Tensor, torch.Tensor | None]] = field(default_factory=list)
    is_done: bool = False

    def add(self, score: float, ids: torch.Tensor, beams: torch.Tensor | None) -> None:
        """Take an output in if it is among the best."""
        if score > NOTHING:
            self.found = sorted([*self.found, (score, ids, beams)], key=lambda hypothesis: -hypothesis[0])[: self.most]

    @property
    def is_full(self) -> bool:
        return len(self.found) == self.most


def _criteria_of(criteria: StoppingCriteriaList, sentences: torch.Tensor) -> StoppingCriteriaList:
    """Return the criteria for some of the sentences."""
    return StoppingCriteriaList(
        SourceLengthCriteria(c.limits[sentences], c.prompt_length) if type(c) is SourceLengthCriteria else c
        for c in criteria
    )


class BeamSearch:
    """One batch in beam search.

    Shapes: G sentences that are still searched, W beams, C candidates for the next beams.
    """

    def __init__(
        self,
        model: Any,
        engine: Engine,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: Any,
    ):
        self.model, self.engine, self.config = model, engine, generation_config
        self.beams = generation_config.num_beams
        self.prompt = input_ids.shape[1]
        self.ids = input_ids  # (G * W, length)
        self.prompts = input_ids[:: self.beams]
        self.criteria, self.stops = stopping_criteria, Stops(stopping_criteria)
        self.processors = Processors(logits_processor, model.config.output_vocab_size)
        config, sentences = generation_config, len(input_ids) // self.beams
        self.wants_dict = config.return_dict_in_generate
        self.history = torch.empty(len(input_ids), 0, dtype=torch.int32) if self.wants_dict else None
        self.all_scores: tuple[torch.Tensor, ...] | None = () if self.wants_dict and config.output_scores else None
        self.raw_logits: tuple[torch.Tensor, ...] | None = () if self.wants_dict and config.output_logits else None
        end = config._eos_token_tensor
        self.candidates = max(2, 1 + (0 if end is None else len(end))) * self.beams  # C
        self.running = torch.zeros(sentences, self.beams)
        self.running[:, 1:] = NOTHING
        self.results = [Hypotheses(self.beams) for _ in range(sentences)]
        self.alive = torch.arange(sentences)
        known = {EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria, SourceLengthCriteria}
        self.may_drop = (
            self.processors.row_by_row
            and all(type(criteria) in known for criteria in stopping_criteria)
            and not config.do_sample
            and self.all_scores is None
            and self.raw_logits is None
        )

    def run(self, states: torch.Tensor) -> Any:
        """Return what `generate()` returns, given the last states (B, D) of the prompts."""
        log_probabilities = self._log_probabilities(states).repeat_interleave(self.beams, dim=0)
        if self.raw_logits:
            self.raw_logits = (self.raw_logits[0].repeat_interleave(self.beams, dim=0),)
        while True:
            scores, parents, tokens = self._candidates(log_probabilities)
            ids, history = self._extended(parents, tokens)
            hits = self.stops(ids, self.all_scores).view(-1, self.candidates)
            self._collect(scores, hits, ids, history)
            running = scores + hits.float() * NOTHING
            chosen = running.topk(self.beams, dim=-1).indices  # (G, W)
            self.running = running.gather(1, chosen)
            parents, tokens = parents.gather(1, chosen), tokens.gather(1, chosen)
            rows = (chosen + torch.arange(len(chosen)).unsqueeze(1) * self.candidates).flatten()
            self.ids = ids.index_select(0, rows)
            self.history = None if history is None else history.index_select(0, rows)
            self._judge()
            open_sentences = [i for i, s in enumerate(self.alive.tolist()) if not self.results[s].is_done]
            if not open_sentences or bool(hits.all()):
                return self._output()
            self.engine.exchange(parents)
            if self.may_drop and worth_dropping(len(open_sentences), len(self.alive)):
                kept = torch.tensor(open_sentences)
                tokens = tokens.index_select(0, kept)
                self._keep(kept)
            log_probabilities = self._log_probabilities(self.engine.step(tokens.flatten()))

    def _log_probabilities(self, states: torch.Tensor) -> torch.Tensor:
        """Return those of every token (rows, V) behind the last states (rows, D)."""
        if self.raw_logits is not None:
            self.raw_logits += (self.engine.logits(states),)
        return self.engine.log_probabilities(states)

    def _candidates(self, log_probabilities: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return scores, beams and tokens (G, C) of the best continuations of (G * W, V), best first."""
        size, sentences = log_probabilities.shape[1], len(self.alive)
        of_tokens = self.processors(self.ids, log_probabilities)
        if self.all_scores is not None:
            self.all_scores += (of_tokens.clone(),)
        count, running = self.candidates, self.running.view(-1, 1)
        if not self.config.do_sample and count <= size:
            values, tokens = top_scores(of_tokens, count)  # (G * W, C), among which the best of a sentence are
            scores, index = (values + running).view(sentences, -1).topk(count, dim=-1)
            # scores of beams that there are not, or of forbidden tokens, are equal, and the order of equals is torch's
            if bool((scores[:, -1] > NOTHING / 2).all()):
                tokens = tokens.view(sentences, -1).gather(1, index)
                return scores, index // count, tokens
        flat = (of_tokens + running).view(sentences, -1)
        if self.config.do_sample:
            index = torch.multinomial(flat.softmax(-1), num_samples=count)
            scores, order = flat.gather(1, index).sort(dim=-1, descending=True)
            index = index.gather(1, order)
        else:
            scores, index = flat.topk(count, dim=-1)
        return scores, index // size, index % size

    def _extended(self, parents: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the ids (G * C, length + 1) of the candidates, and the beams that wrote them where they are wanted."""
        rows = (parents + torch.arange(len(parents)).unsqueeze(1) * self.beams).flatten()
        ids = torch.cat([self.ids.index_select(0, rows), tokens.view(-1, 1)], dim=1)
        if self.history is None:
            return ids, None
        beams = (parents + self.alive.unsqueeze(1) * self.beams).view(-1, 1).to(torch.int32)
        return ids, torch.cat([self.history.index_select(0, rows), beams], dim=1)

    def _collect(
        self, scores: torch.Tensor, hits: torch.Tensor, ids: torch.Tensor, history: torch.Tensor | None
    ) -> None:
        """Keep the candidates among the best W that have ended."""
        ended = hits[:, : self.beams]
        if not bool(ended.any()):
            return
        length = ids.shape[1] - self.prompt
        normalised = (scores / (length**self.config.length_penalty)).tolist()
        for row, candidate in ended.nonzero().tolist():
            result = self.results[int(self.alive[row])]
            if not result.is_done:
                index = row * self.candidates + candidate
                beams = None if history is None else history[index]
                result.add(normalised[row][candidate], ids[index], beams)

    def _judge(self) -> None:
        """Find the sentences whose running beams cannot improve on what has ended, as transformers estimates it."""
        config, penalty = self.config, self.config.length_penalty
        length = self.ids.shape[1] - self.prompt
        if config.early_stopping == "never" and penalty > 0.0:
            length = config.max_length - self.prompt
        possible = (self.running[:, 0] / (length**penalty)).tolist()
        for sentence, best in zip(self.alive.tolist(), possible, strict=True):
            result = self.results[sentence]
            worst = result.found[-1][0] if result.is_full else NOTHING
            if not best > worst or (result.is_full and config.early_stopping is True):
                result.is_done = True

    def _keep(self, kept: torch.Tensor) -> None:
        """Leave all sentences out but those at `kept`."""
        rows = (kept.unsqueeze(1) * self.beams + torch.arange(self.beams)).flatten()
        self.alive, self.running = self.alive[kept], self.running[kept]
        self.ids = self.ids.index_select(0, rows)
        self.history = None if self.history is None else self.history.index_select(0, rows)
        self.stops = Stops(_criteria_of(self.criteria, self.alive))
        self.engine.keep_groups(kept)

    def _output(self) -> Any:
        """Return sequences, filled up as transformers does, and what else was asked for."""
        config, count = self.config, self.config.num_return_sequences
        fills = (config._pad_token_tensor, config._eos_token_tensor)
        fill = next((int(tokens.flatten()[0]) for tokens in fills if tokens is not None), -1)
        best = [(*result.found, *[None] * self.beams)[:count] for result in self.results]
        found = [hypothesis for of_sentence in best for hypothesis in of_sentence]
        lengths = [self.prompt if hypothesis is None else len(hypothesis[1]) for hypothesis in found]
        sequences = torch.full((len(found), max(lengths)), fill)
        beam_indices = torch.full((len(found), max(lengths) - self.prompt), -1, dtype=torch.int32)
        for row, hypothesis in enumerate(found):
            if hypothesis is None:
                sequences[row, : self.prompt] = self.prompts[row // count]
                continue
            sequences[row, : lengths[row]] = hypothesis[1]
            if hypothesis[2] is not None:
                beam_indices[row, : lengths[row] - self.prompt] = hypothesis[2]
        if not self.wants_dict:
            return sequences
        scores = torch.tensor([NOTHING if hypothesis is None else hypothesis[0] for hypothesis in found])
        is_encoder_decoder = self.model.config.is_encoder_decoder
        output = GenerateBeamEncoderDecoderOutput if is_encoder_decoder else GenerateBeamDecoderOnlyOutput
        return output(
            sequences=sequences,
            sequences_scores=scores if config.output_scores else None,
            scores=self.all_scores,
            logits=self.raw_logits,
            beam_indices=beam_indices,
        )
