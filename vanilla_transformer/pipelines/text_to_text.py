"""Translation and summarization with encoder-decoders."""

import os
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.generation.sentences import texts_within
from vanilla_transformer.generation.text_generator import (
    check_vocabularies,
    default_length,
    input_limit,
    join_parts,
    longest_source,
    sequence_scores,
)
from vanilla_transformer.loading import TARGET_TOKENIZER, load_tokenizer, locate
from vanilla_transformer.pipelines.text_pipeline import TextPipeline

__all__ = ["SummarizationPipeline", "TextToTextPipeline", "TranslationPipeline"]

LONG_INPUTS = ("split", "refuse", "truncate")


class TextToTextPipeline(TextPipeline):
    """Write a text for each text, by an encoder-decoder of this package or of transformers (Marian, BART, T5, ...).

    Called with one text it gives a list of records, one for each of `num_return_sequences`; with a list of texts a record
    for each, in order, or a list of records for each where there are several; with a generator or a data set an iterator
    over lists of records. A record holds `<task>_text`. An empty text gives an empty output. What else is given, here or in
    the call, goes to `generate()`.

    Args:
        target_tokenizer: of the target side, or its folder, where vocabularies are separate; by default the model
            folder's own (`target_tokenizer`).
        scores: records also hold `score`, the log-probability of the output, of beams under the length penalty; the sum
            over the parts of a long text, and None for an empty text.
        return_tensors, return_text: records hold `<task>_token_ids`, with or without the text.
        clean_up_tokenization_spaces: of the tokenizer's `decode`.
        long_inputs: what happens to a text that is longer than the model can read, which is what its positions, its
            tokenizer's `model_max_length` and `max_source_tokens` allow. `"split"`: whole sentences go together as far as
            they fit, and their outputs are joined again. `"refuse"`: a ValueError. `"truncate"` (or `truncation=True`): the
            end is lost.
        max_source_tokens: the largest number of tokens of a text, prefix and special tokens included; by default, of a
            model of this package, its `max_position_embeddings`. Where positions have no table it can be more than that.
        prefix: put before each text; by default that of the model's `task_specific_params` for this task, if any (T5).
        src_lang, tgt_lang: languages as the tokenizer names them (mBART, M2M100, NLLB), or as a task
            `translation_xx_to_yy` in the model's `task_specific_params` does (T5); by default those of the task's name.

    Raises:
        ValueError: for a model that is not an encoder-decoder, a tokenizer that does not fit it, a language that it does not
            know, a text that is too long and cannot be split.
        TypeError: for an input that is not a text.
    """

    default_task: ClassVar[str]
    result_name: ClassVar[str]

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        target_tokenizer: PreTrainedTokenizerBase | str | os.PathLike | None = None,
        task: str = "",
        **options: Any,
    ):
        task = task or self.default_task
        if not (model.config.is_encoder_decoder and model.can_generate()):
            raise ValueError(f"{task} needs an encoder-decoder that generates text, not a {type(model).__name__}.")
        if tokenizer is None:
            raise ValueError(f"{task} needs a tokenizer: give tokenizer=, or the model's folder or id as model=.")
        self.target_tokenizer = _target_tokenizer(model, target_tokenizer) or tokenizer
        check_vocabularies(model.config, tokenizer, self.target_tokenizer)
        super().__init__(model=model.eval(), tokenizer=tokenizer, task=task, **options)

    def __call__(self, inputs: Any, **options: Any) -> Any:
        results = super().__call__(inputs, **options)
        one_each = isinstance(inputs, list | tuple) and all(len(records) == 1 for records in results)
        return [records[0] for records in results] if one_each else results

    def save_pretrained(self, save_directory: str | os.PathLike, **options: Any) -> None:
        super().save_pretrained(save_directory, **options)
        if self.target_tokenizer is not self.tokenizer:
            self.target_tokenizer.save_pretrained(os.path.join(save_directory, TARGET_TOKENIZER))

    def _sanitize_parameters(self, truncation: bool | None = None, **options: Any) -> tuple[dict[str, Any], ...]:
        long_inputs = options.get("long_inputs")
        if truncation is not None and long_inputs is None:
            options["long_inputs"] = long_inputs = "truncate" if truncation else "split"
        if long_inputs not in (None, *LONG_INPUTS):
            raise ValueError(f"long_inputs={long_inputs!r} is none of {', '.join(map(repr, LONG_INPUTS))}.")
        return super()._sanitize_parameters(**options)

    def preprocess(
        self,
        text: str,
        long_inputs: str = "split",
        max_source_tokens: int | None = None,
        prefix: str | None = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield the parts of a text: input_ids and attention_mask (1, S), the white space before it, whether it is blank."""
        if not isinstance(text, str):
            raise TypeError(f"{self.task} takes a text or a list of texts, not {text!r:.60} ({type(text).__name__}).")
        if prefix is None:
            prefix = self._task_params(src_lang, tgt_lang).get("prefix") or ""
        source, _ = self._languages(src_lang, tgt_lang)
        if source is not None:
            self.tokenizer.src_lang = source

        def ids(part: str) -> list[int]:
            # a special token spelled out in a text is text
            return self.tokenizer(prefix + part, verbose=False, split_special_tokens=True)["input_ids"]

        # the parts: one, or as few as whole sentences give
        limit = input_limit(self.model.config, self.tokenizer)
        if max_source_tokens is not None:
            limit = min(max_source_tokens, longest_source(self.model.config))
        parts = [("", text)]
        if (length := len(ids(text))) > limit and long_inputs != "truncate":
            too_long = (
                f"the text that begins {text[:40]!r} has {length} tokens, more than the {limit} that can be read"
            )
            if long_inputs == "refuse":
                raise ValueError(f"{too_long}; shorten it, or let it be split (long_inputs='split').")
            try:
                parts = texts_within(text, lambda part: len(ids(part)) <= limit)
            except ValueError as sentence:
                raise ValueError(
                    f"{too_long}, and so has its sentence {str(sentence)[:40]!r} alone, so that it cannot be split at "
                    "sentences; shorten it, or have its end cut off (long_inputs='truncate')."
                ) from None
        # their tokens
        for number, (gap, part) in enumerate(parts):
            options = {"truncation": True, "max_length": int(limit)} if length > limit and len(parts) == 1 else {}
            rows = self.tokenizer(
                prefix + part, return_tensors="pt", verbose=False, split_special_tokens=True, **options
            )
            yield {
                "input_ids": rows["input_ids"].long(),
                "attention_mask": rows["attention_mask"].long(),
                "gap": gap,
                "blank": not part.strip(),
                "is_last": number == len(parts) - 1,
            }

    def _forward(
        self,
        model_inputs: dict[str, Any],
        scores: bool = False,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **generate_options: Any,
    ) -> dict[str, Any]:
        """Generate for (B, S) to sequences (B, returned, T) and their scores (B, returned), 0 unless asked for."""
        parts = {name: model_inputs[name] for name in ("gap", "blank", "is_last")}
        rows = torch.tensor(parts["blank"], device=self.device).view(-1).logical_not().nonzero().view(-1)
        count = 1 if isinstance(parts["blank"], bool) else len(parts["blank"])
        options = self._generate_options(src_lang, tgt_lang, generate_options)
        settings = (options.get("generation_config"), self.model.generation_config)
        returned = options.get("num_return_sequences") or next(
            (number for config in settings if (number := getattr(config, "num_return_sequences", None))), 1
        )
        sequences = torch.zeros(count, returned, 1, dtype=torch.long, device=self.device)
        values = torch.zeros(count, returned, device=self.device)
        if len(rows):  # in what is blank there is nothing to read
            output = self.model.generate(
                input_ids=model_inputs["input_ids"][rows],
                attention_mask=model_inputs["attention_mask"][rows],
                return_dict_in_generate=scores,
                output_scores=scores,
                **options,
            )
            written = (output.sequences if scores else output).view(len(rows), returned, -1)
            sequences = sequences.expand(-1, -1, written.shape[-1]).clone()
            sequences[rows] = written
            if scores:
                values[rows] = sequence_scores(self.model, output).view(len(rows), returned)
        return {"sequences": sequences, "scores": values, **parts}

    def postprocess(
        self,
        model_outputs: list[dict[str, Any]],
        scores: bool = False,
        return_tensors: bool = False,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[dict[str, Any]]:
        """Join the outputs of a text's parts, by the white space of the source, or a space where it had none."""
        returned = model_outputs[0]["sequences"].shape[1]
        if returned > 1 and len(model_outputs) > 1:
            raise ValueError(
                f"a text had to be read in {len(model_outputs)} parts, and the {returned} best outputs of each do not tell "
                f"the {returned} best of the whole; ask for one (num_return_sequences=1), or shorten the text."
            )
        records = []
        blank = all(part["blank"] for part in model_outputs)
        for number in range(returned):
            tokens = [part["sequences"][0, number] for part in model_outputs]
            record: dict[str, Any] = {}
            if return_text or (return_text is None and not return_tensors):
                decode = {"clean_up_tokenization_spaces": clean_up_tokenization_spaces, "skip_special_tokens": True}
                texts = [self.target_tokenizer.decode(row, **decode) for row in tokens]
                gaps = [part["gap"] for part in model_outputs]
                record[f"{self.result_name}_text"] = "" if blank else join_parts(gaps, texts)
            if return_tensors:
                record[f"{self.result_name}_token_ids"] = torch.cat(tokens)[: 0 if blank else None]
            if scores:
                record["score"] = None if blank else sum(part["scores"][0, number].item() for part in model_outputs)
            records.append(record)
        return records

    def _languages(self, src_lang: str | None, tgt_lang: str | None) -> tuple[str | None, str | None]:
        """Return source and target as the tokenizer is to be told, None for one that has no languages."""
        of_task = re.fullmatch("translation_(.+)_to_(.+)", self.task)
        source, target = (
            given or (of_task[group] if of_task else None) for group, given in enumerate((src_lang, tgt_lang), start=1)
        )
        if hasattr(self.tokenizer, "src_lang"):
            return source, target
        asked = [f"{name}={value!r}" for name, value in (("src_lang", src_lang), ("tgt_lang", tgt_lang)) if value]
        if asked and not self._task_params(src_lang, tgt_lang):
            raise ValueError(f"{', '.join(asked)}: neither the tokenizer nor the model's configuration has languages.")
        return None, None

    def _task_params(self, src_lang: str | None, tgt_lang: str | None) -> dict[str, Any]:
        of_tasks = getattr(self.model.config, "task_specific_params", None) or {}
        return of_tasks.get(f"translation_{src_lang}_to_{tgt_lang}") or of_tasks.get(self.task) or {}

    def _generate_options(self, src_lang: str | None, tgt_lang: str | None, given: dict[str, Any]) -> dict[str, Any]:
        """Return what was given, above what the configuration has for this task, above a default for the length."""
        options = dict(given)
        _, target = self._languages(src_lang, tgt_lang)
        if target is not None:
            # languages are tokens of their names, except in M2M100
            to_id = getattr(self.tokenizer, "get_lang_id", self.tokenizer.convert_tokens_to_ids)
            try:
                options.setdefault("forced_bos_token_id", to_id(target))
            except KeyError:
                options["forced_bos_token_id"] = None
            if options["forced_bos_token_id"] in (None, self.tokenizer.unk_token_id):
                raise ValueError(f"the tokenizer has no language {target!r}.")
        if given.get("generation_config") is not None:
            return options
        known = vars(GenerationConfig())
        of_task = {name: v for name, v in self._task_params(src_lang, tgt_lang).items() if name in known}
        for bound in ("max", "min"):
            if given.get(f"{bound}_new_tokens") is not None:
                of_task.pop(f"{bound}_length", None)
        options = of_task | options
        # after the start token; the target has as many positions as the source
        return default_length(self.model, options, used=1) | options


def _target_tokenizer(model: PreTrainedModel, given: Any) -> PreTrainedTokenizerBase | None:
    if isinstance(given, str | os.PathLike):
        return load_tokenizer(given)
    if given is not None or not getattr(model.config, "target_vocab_size", None):
        return given
    # the revision that the configuration came from, a commit of the Hub; None for a folder
    revision = getattr(model.config, "_commit_hash", None)
    try:
        if not model.name_or_path:
            raise FileNotFoundError("the model was loaded from nowhere")
        is_folder = os.path.isdir(model.name_or_path)
        source = locate(model.name_or_path, revision=None if is_folder else revision, needs=None)
        return load_tokenizer(source, TARGET_TOKENIZER)
    except OSError as error:
        raise ValueError(
            f"the model has separate vocabularies, but {model.name_or_path or 'what it was made from'} holds no "
            f"tokenizer of the target side in {TARGET_TOKENIZER}; save it there, or give it as target_tokenizer=."
        ) from error


class TranslationPipeline(TextToTextPipeline):
    __doc__ = TextToTextPipeline.__doc__
    default_task = result_name = "translation"


class SummarizationPipeline(TextToTextPipeline):
    __doc__ = TextToTextPipeline.__doc__
    default_task, result_name = "summarization", "summary"
