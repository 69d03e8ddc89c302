"""A folder of CTranslate2, loaded again: it scores and generates rows of token ids."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from vanilla_transformer.conversion.parity import largest_difference
from vanilla_transformer.export.parity import Rows
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel
from vanilla_transformer.utils.extras import needs

__all__ = ["CTranslate2Runtime"]


class CTranslate2Runtime:
    """A model in the form of CTranslate2, on the CPU.

    Args:
        folder: that `write_ctranslate2` wrote.
        architecture: of the model.
        tokens: the vocabularies of source and target, in the order of ids, since CTranslate2 takes tokens.
        compute_type: as CTranslate2 names it, such as `"float32"` or `"int8"`.
    """

    def __init__(self, folder: Path, architecture: str, tokens: tuple[list[str], list[str]], compute_type: str):
        with needs("this export"):
            import ctranslate2
        self.name = f"CTranslate2, {compute_type}"
        self.is_exact = compute_type == "float32"
        self.architecture = architecture
        self.source, self.target = tokens
        self.ids = {token: index for index, token in enumerate(self.target)}
        opened = {
            "encoder-decoder": ctranslate2.Translator,
            "decoder-only": ctranslate2.Generator,
            "encoder-only": ctranslate2.Encoder,
        }[architecture]
        # "default" is what the file holds, or the nearest that this processor computes in
        compute_type = "float32" if self.is_exact else "default"
        self.model: Any = opened(str(folder), device="cpu", compute_type=compute_type, inter_threads=1)

    def _tokens(self, rows: Rows) -> list[list[str]]:
        return [[self.source[index] for index in row] for row in rows]

    @torch.inference_mode()
    def largest_difference(self, model: VanillaTransformerPreTrainedModel, rows: Rows) -> float:
        """Compare log-probabilities of a target (here the rows turned round), logits of a text, or states of an encoder."""
        if self.architecture == "encoder-decoder":
            return self._difference_of_scores(model, rows)
        if self.architecture == "decoder-only":
            found = np.array(self.model.forward_batch(self._tokens(rows)))
        else:
            found = np.array(self.model.forward_batch(rows).last_hidden_state)
        largest = 0.0
        for row, array in zip(rows, found, strict=True):
            output = (model if self.architecture == "decoder-only" else model.base_model)(torch.tensor([row]))[0][0]
            largest = max(largest, largest_difference(output, torch.from_numpy(array[: len(row)])))
        return largest

    def _difference_of_scores(self, model: VanillaTransformerPreTrainedModel, rows: Rows) -> float:
        targets = [[index % len(self.target) for index in reversed(row[:-1])] for row in rows]
        scored = self.model.score_batch(self._tokens(rows), [[self.target[i] for i in target] for target in targets])
        start, end = model.config.start_token_id, model.generation_config.eos_token_id
        end = end[0] if isinstance(end, list) else end
        largest = 0.0
        for row, target, result in zip(rows, targets, scored, strict=True):
            logits = model(torch.tensor([row]), decoder_input_ids=torch.tensor([[start, *target]])).logits[0]
            scores = logits.float().log_softmax(-1)[torch.arange(len(target) + 1), torch.tensor([*target, end])]
            largest = max(largest, largest_difference(scores, torch.tensor(result.log_probs)))
        return largest

    def write(self, rows: Rows, new_tokens: int) -> Rows | None:
        """Return what greedy search writes behind each row; None for an encoder."""
        if self.architecture == "encoder-only":
            return None
        options: dict[str, Any] = {"beam_size": 1}
        if self.architecture == "encoder-decoder":
            # the end token counts where generate() counts it
            results = self.model.translate_batch(self._tokens(rows), max_decoding_length=new_tokens, **options)
            return [[self.ids[token] for token in result.hypotheses[0]] for result in results]
        written = []
        for row, tokens in zip(rows, self._tokens(rows), strict=True):
            # the prompt counts, but for its first token; without it in the result, some models leave part of it there
            length = len(row) + new_tokens - 1
            result = self.model.generate_batch([tokens], max_length=length, sampling_topk=1, **options)[0]
            written.append(list(result.sequences_ids[0])[len(row) :])
        return written
