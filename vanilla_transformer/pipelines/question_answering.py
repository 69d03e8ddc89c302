"""Extractive question answering: the part of a text that answers a question."""

from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.generation.text_generator import check_vocabularies, longest_source
from vanilla_transformer.pipelines.text_pipeline import TextPipeline

__all__ = ["QuestionAnsweringPipeline"]


class QuestionAnsweringPipeline(TextPipeline):
    """Find the answers to questions in their contexts, with a model that says where answers start and end.

    Called with `question=` and `context=`, or a dictionary of both, it gives a record, or with `top_k` above 1 a list of
    them, best first; with lists of them, or one context and several questions, a list of that, in order. A record holds the
    `answer`, as it stands in the context, its characters `start` and `end` there, and its `score`: the probability of its
    first token among all tokens of the context, times that of its last one. A long context is read in windows that overlap,
    and probabilities are over all of them, so that answers in different windows can be compared.

    Args:
        top_k: the largest number of answers.
        max_answer_len: the largest number of tokens of an answer.
        max_seq_len: the largest number of tokens of a window, question and special tokens included; less where the model or
            its tokenizer takes less.
        doc_stride: number of tokens that a window has in common with the one before; by default 128, or less in windows
            that have few tokens of context.
        max_question_len: a question of more tokens is refused.
        handle_impossible_answer: that there is no answer is one, too: an empty text, at 0, with the probability of the first
            special token (BERT's `[CLS]`) in the window in which it is least.
        align_to_words: an answer that begins or ends within a word gets all of it. Turn it off where words do not stand
            apart (Chinese, Japanese).

    Raises:
        ValueError: for an empty question or context, a question that is too long, a model or tokenizer that cannot do this.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, task: str = "", **options: Any
    ):
        task = task or "question-answering"
        if tokenizer is None or not tokenizer.is_fast:
            raise ValueError(f"{task} needs a fast tokenizer, which knows the characters of each token.")
        check_vocabularies(model.config, tokenizer, tokenizer)
        super().__init__(model=model.eval(), tokenizer=tokenizer, task=task, **options)

    def __call__(self, inputs: Any = None, *, question: Any = None, context: Any = None, **options: Any) -> Any:
        if inputs is None:
            inputs = _examples(question, context)
        elif question is not None or context is not None:
            raise ValueError("give either examples or question= and context=, not both.")
        return super().__call__(inputs, **options)

    def _sanitize_parameters(self, **options: Any) -> tuple[dict[str, Any], ...]:
        for name in ("top_k", "max_answer_len"):
            if (value := options.get(name)) is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        return super()._sanitize_parameters(**options)

    def preprocess(
        self,
        example: dict[str, str],
        max_seq_len: int = 384,
        doc_stride: int | None = None,
        max_question_len: int = 64,
        align_to_words: bool = True,
        handle_impossible_answer: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Yield the windows: the model's inputs (1, T), which tokens are context and which stands for no answer (1, T)."""
        question, context = _checked(example)
        # how many tokens of context a window has room for, and how many it shares with the one before
        length = len(
            self.tokenizer(question, add_special_tokens=False, verbose=False, split_special_tokens=True)["input_ids"]
        )
        if length > max_question_len:
            raise ValueError(
                f"the question {question[:40]!r} has {length} tokens, more than max_question_len={max_question_len}; "
                "shorten it, or raise that."
            )
        window = int(min(max_seq_len, self.tokenizer.model_max_length, longest_source(self.model.config)))
        room = window - length - self.tokenizer.num_special_tokens_to_add(pair=True)
        overlap = min(128, room // 2) if doc_stride is None else doc_stride
        if not 0 <= overlap < room:
            raise ValueError(
                f"windows of {window} tokens have room for {max(room, 0)} tokens of context beside the question, so "
                f"that they cannot have {max(overlap, 0)} in common; change max_seq_len or doc_stride."
            )
        # tokens of all windows, with the characters that each stands for
        encoded = self.tokenizer(
            question,
            context,
            truncation="only_second",
            max_length=window,
            stride=overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            verbose=False,
            split_special_tokens=True,
        )
        # one window after another
        names = [name for name in self.tokenizer.model_input_names if name in encoded]
        windows = len(encoded["input_ids"])
        for number in range(windows):
            is_context = torch.tensor([[part == 1 for part in encoded.sequence_ids(number)]])
            is_no_answer = torch.zeros_like(is_context)
            if encoded["special_tokens_mask"][number][0]:
                is_no_answer[0, 0] = True
            elif handle_impossible_answer:
                raise ValueError("the tokenizer puts no special token first, which would stand for no answer.")
            offsets = encoded["offset_mapping"][number]
            if align_to_words:
                offsets = _of_words(offsets, encoded.word_ids(number), encoded.sequence_ids(number))
            yield {
                **{name: torch.tensor([encoded[name][number]]) for name in names},
                "is_context": is_context,
                "is_no_answer": is_no_answer,
                "spans": [offsets[token] for token in is_context[0].nonzero().view(-1).tolist()],
                "context": context,
                "is_last": number == windows - 1,
            }

    def _forward(self, model_inputs: dict[str, Any]) -> dict[str, Any]:
        own = {name: model_inputs.pop(name) for name in ("is_context", "is_no_answer", "spans", "context", "is_last")}
        output = self.model(**model_inputs)
        if "start_logits" not in output:
            raise ValueError(f"a {type(self.model).__name__} does not say where answers start and end.")
        return {"start": output["start_logits"].float(), "end": output["end_logits"].float(), **own}

    def postprocess(
        self,
        model_outputs: list[dict[str, Any]],
        top_k: int = 1,
        max_answer_len: int = 15,
        handle_impossible_answer: bool = False,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the best answers over all windows."""
        context = model_outputs[0]["context"]
        # over what can be said: the tokens of context and the one for no answer, of every window
        totals = {
            side: torch.cat(
                [w[side][w["is_context"].bool() | w["is_no_answer"].bool()] for w in model_outputs]
            ).logsumexp(0)
            for side in ("start", "end")
        }
        # of each window the most probable spans
        answers: dict[tuple[int, int], float] = {}
        no_answer = float("inf")
        for window in model_outputs:
            logs = {side: window[side] - totals[side] for side in totals}
            starts, ends = (logs[side][window["is_context"].bool()] for side in ("start", "end"))
            both = (starts[:, None] + ends[None, :]).exp()  # (tokens, tokens)
            allowed = torch.ones_like(both).triu().tril(max_answer_len - 1).bool()
            found: set[tuple[int, int]] = set()
            values, places = both.masked_fill(~allowed, -1.0).flatten().sort(descending=True, stable=True)
            for value, place in zip(values.tolist(), places.tolist(), strict=True):
                if value < 0 or len(found) == top_k:
                    break
                first, last = divmod(place, len(starts))
                span = _without_space(context, window["spans"][first][0], window["spans"][last][1])
                if span[0] < span[1]:
                    found.add(span)
                    answers[span] = max(value, answers.get(span, 0.0))
            if handle_impossible_answer:
                nothing = window["is_no_answer"].bool()
                no_answer = min(no_answer, (logs["start"][nothing] + logs["end"][nothing]).exp().item())
        # of all windows the best
        records = [
            {"score": score, "start": start, "end": end, "answer": context[start:end]}
            for (start, end), score in answers.items()
        ]
        if handle_impossible_answer:
            records.append({"score": no_answer, "start": 0, "end": 0, "answer": ""})
        records = sorted(records, key=lambda record: -record["score"])[:top_k]
        return records[0] if top_k == 1 else records


def _checked(example: Any) -> tuple[str, str]:
    if not isinstance(example, dict) or not {"question", "context"} <= example.keys():
        raise ValueError(f"an example is a dictionary with a question and a context, not {example!r:.60}.")
    for name in ("question", "context"):
        if not isinstance(example[name], str) or not example[name].strip():
            raise ValueError(f"the {name} of an example must be a text that is not empty, not {example[name]!r:.60}.")
    return example["question"], example["context"]


def _examples(question: Any, context: Any) -> dict[str, str] | list[dict[str, str]]:
    """Return one example, or where one of the two is a list, as many; the other one may be the same for all."""
    lists = [each for each in (question, context) if isinstance(each, list | tuple)]
    if not lists:
        return {"question": question, "context": context}
    questions, contexts = (
        each if isinstance(each, list | tuple) else [each] * len(lists[0]) for each in (question, context)
    )
    if len(questions) != len(contexts):
        raise ValueError(f"{len(questions)} questions and {len(contexts)} contexts do not go together.")
    return [{"question": q, "context": c} for q, c in zip(questions, contexts, strict=True)]


def _of_words(
    offsets: list[tuple[int, int]], words: list[int | None], parts: list[int | None]
) -> list[tuple[int, int]]:
    """Return the characters of each token's word instead of its own, as far as the window holds it."""
    bounds: dict[Any, tuple[int, int]] = {}
    keys = [
        (part, token if word is None else ("word", word))
        for token, (word, part) in enumerate(zip(words, parts, strict=True))
    ]
    for key, (start, end) in zip(keys, offsets, strict=True):
        first, last = bounds.get(key, (start, end))
        bounds[key] = (min(first, start), max(last, end))
    return [bounds[key] for key in keys]


def _without_space(text: str, start: int, end: int) -> tuple[int, int]:
    span = text[start:end]
    return start + len(span) - len(span.lstrip()), start + len(span.rstrip())
