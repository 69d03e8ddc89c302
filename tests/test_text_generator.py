"""Text generation in batches: lines in, lines out, in order, whatever the batches; and what it refuses."""

import pytest
import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

from runs import reversed_words, save_translator, word_tokenizer
from tiny import LANGUAGE_MODELS, tiny_config, tiny_model
from vanilla_transformer.generation.text_generator import Hypothesis, TextGenerator, _batches_by_length, filler_token
from vanilla_transformer.loading import TARGET_TOKENIZER

SOURCES = [source for source, _ in reversed_words(12, 6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_translator(folder)
    return folder


@pytest.fixture(scope="module")
def translator(folder):
    return TextGenerator.from_pretrained(folder)


def texts(results):
    return [hypotheses[0].text for hypotheses in results]


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_any_batches_give_what_each_text_gives_alone(translator, options):
    alone = texts(translator.generate(SOURCES, read_ahead=1, **options))
    assert len(set(alone)) > 5, "the texts should differ"
    for batching in ({}, {"max_batch_tokens": 1}, {"max_batch_tokens": 40}, {"read_ahead": 5}):
        assert texts(translator.generate(SOURCES, **batching, **options)) == alone


def test_empty_texts_keep_their_place(translator):
    sources = ["", *SOURCES[:2], "  ", "", SOURCES[2], "\t"]
    outputs = texts(translator.generate(sources, max_batch_tokens=30))
    assert [outputs[i] for i in (0, 3, 4, 6)] == [""] * 4
    assert [outputs[i] for i in (1, 2, 5)] == texts(translator.generate(SOURCES[:3]))
    assert list(translator.generate(["", ""], n_best=2, num_beams=2)) == [[Hypothesis("", None)] * 2] * 2
    assert list(translator.generate([])) == []


def test_texts_are_read_no_further_ahead_than_asked(translator):
    read = []

    def counted():
        for source in SOURCES:
            read.append(source)
            yield source

    results = translator.generate(counted(), read_ahead=2)
    assert read == []
    next(results)
    assert len(read) == 2
    with pytest.raises(ValueError, match="read_ahead=0"):
        next(translator.generate(SOURCES, read_ahead=0))


def test_the_best_of_n_come_first_with_their_scores(translator):
    results = list(translator.generate(SOURCES[:4], n_best=3, num_beams=4, scores=True))
    best = texts(translator.generate(SOURCES[:4], num_beams=4))
    for hypotheses, text in zip(results, best, strict=True):
        assert len(hypotheses) == 3 and hypotheses[0].text == text
        values = [hypothesis.score for hypothesis in hypotheses]
        assert values == sorted(values, reverse=True) and values[0] < 0
    with pytest.raises(ValueError, match="3 outputs of each text need at least as many beams, not 2"):
        next(translator.generate(SOURCES, n_best=3, num_beams=2))


def test_the_score_of_a_greedy_output_is_its_log_probability(translator):
    model, tokenizer = translator.model, translator.tokenizer
    for source, hypotheses in zip(SOURCES[:5], translator.generate(SOURCES[:5], scores=True), strict=True):
        inputs = tokenizer([source], return_tensors="pt")
        ids = model.generate(**inputs)
        with torch.no_grad():
            log_probabilities = model(**inputs, decoder_input_ids=ids[:, :-1]).logits.log_softmax(-1)
        expected = log_probabilities[0].gather(1, ids[0, 1:, None]).sum().item()
        assert hypotheses[0].score == pytest.approx(expected, abs=1e-3)
    assert next(translator.generate(SOURCES, num_beams=2))[0].score is None


@pytest.mark.parametrize("budget", [1, 7, 100])
def test_batches_hold_every_row_once_and_stay_within_the_budget(budget):
    rows = [[1] * length for length in (3, 0, 7, 1, 7, 2, 0, 5)]
    batches = list(_batches_by_length(rows, budget))
    assert sorted(index for batch in batches for index in batch) == [0, 2, 3, 4, 5, 7]
    for batch in batches:
        longest = max(len(rows[index]) for index in batch)
        assert len(batch) == 1 or longest * len(batch) <= budget


def test_a_tokenizer_larger_than_the_model_is_refused_with_both_sizes(folder):
    """Reported in huggingface/transformers#11102 and #12763."""
    tokenizer = word_tokenizer()
    tokenizer.add_tokens(["<one>", "<two>"])
    model = tiny_model(vocab_size=280, target_vocab_size=300)
    with pytest.raises(ValueError, match="the source tokenizer has 282 tokens but the model 280"):
        TextGenerator(model, tokenizer, word_tokenizer())
    TextGenerator(model, word_tokenizer(), tokenizer)
    tokenizer.add_tokens([f"<{number}>" for number in range(20)])
    with pytest.raises(ValueError, match="the target tokenizer has 302 tokens but the model 300"):
        TextGenerator(model, word_tokenizer(), tokenizer)
    model = tiny_model(vocab_size=280)
    model.resize_token_embeddings(len(tokenizer))
    assert len(texts(TextGenerator(model, tokenizer).generate(["red", "<one>"], max_new_tokens=2))) == 2


def test_separate_vocabularies_need_both_tokenizers(tmp_path):
    save_translator(tmp_path, target_vocab_size=270)
    with pytest.raises(FileNotFoundError, match=f"holds no {TARGET_TOKENIZER}"):
        TextGenerator.from_pretrained(tmp_path)
    word_tokenizer(270).save_pretrained(tmp_path / TARGET_TOKENIZER)
    translator = TextGenerator.from_pretrained(tmp_path)
    assert (len(translator.tokenizer), len(translator.target_tokenizer)) == (280, 270)


def test_a_source_beyond_learned_positions_is_cut_or_refused_by_its_line():
    tokenizer = word_tokenizer()
    model = tiny_model(vocab_size=280, position_encoding="learned", max_position_embeddings=8)
    translator = TextGenerator(model, tokenizer)
    texts, options, said = ["red", "", "red dog", "red " * 9], {"read_ahead": 2, "max_new_tokens": 2}, []
    results = translator.generate(texts, log=said.append, **options)
    assert len(list(results)) == 4 and said[0].startswith("warning: line 4 has a sentence of more than the 8 tokens")
    # the best outputs of parts would not tell the best ones of the whole
    results = translator.generate(texts, n_best=2, num_beams=2, **options)
    assert [next(results) and None for _ in range(2)] == [None, None]
    with pytest.raises(ValueError, match="line 4 of the input is a text of 19 tokens, more than the 8 positions"):
        list(results)


def test_folders_without_a_whole_model_are_refused(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere is not there"):
        TextGenerator.from_pretrained("./nowhere")
    with pytest.raises(FileNotFoundError, match="holds no config.json"):
        TextGenerator.from_pretrained(tmp_path)

    tiny_model(vocab_size=280).save_pretrained(tmp_path / "bare")
    with pytest.raises(FileNotFoundError, match="bare holds no tokenizer"):
        TextGenerator.from_pretrained(tmp_path / "bare")

    word_tokenizer().save_pretrained(tmp_path / "bare")
    weights = tmp_path / "bare" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ValueError, match="the weights in .*bare are damaged"):
        TextGenerator.from_pretrained(tmp_path / "bare")
    weights.unlink()
    with pytest.raises(OSError, match="model.safetensors"):
        TextGenerator.from_pretrained(tmp_path / "bare")

    save_file({"other": torch.ones(2)}, weights, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="the weights in .*bare are not those of the model"):
        TextGenerator.from_pretrained(tmp_path / "bare")

    model = LANGUAGE_MODELS["encoder-only"](tiny_config("encoder-only", vocab_size=280))
    model.save_pretrained(tmp_path / "encoder")
    word_tokenizer().save_pretrained(tmp_path / "encoder")
    with pytest.raises(ValueError, match="is an encoder, which writes no text"):
        TextGenerator.from_pretrained(tmp_path / "encoder")


def test_rows_are_filled_also_where_nothing_names_a_token_for_it():
    model, tokenizer = tiny_model(architecture="decoder-only"), word_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token = None
    for ends, filler in ((None, 0), ([], 0), (2, 2), ([3, 2], 3)):
        model.generation_config.pad_token_id, model.generation_config.eos_token_id = None, ends
        assert filler_token(model, tokenizer) == filler


@pytest.mark.parametrize("family", ["ours", "gpt2"])
def test_outputs_of_a_decoder_are_not_cut_after_the_twenty_tokens_of_transformers(family, recwarn):
    """Without any setting of the length: as many as there are positions for, at most 256, and no advice is printed."""
    tokenizer = word_tokenizer()
    if family == "ours":
        fields = {"position_encoding": "learned", "max_position_embeddings": 48}
        model = tiny_model("decoder-only", vocab_size=280, eos_token_id=None, **fields)
    else:
        torch.manual_seed(0)
        sizes = {"vocab_size": 280, "n_positions": 48, "n_embd": 16, "n_layer": 1, "n_head": 2}
        model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=None)).eval()
    generator, prompt = TextGenerator(model, tokenizer), "red dog"
    written = []
    model.generate, generate = lambda **options: written.append(generate(**options)) or written[-1], model.generate
    list(generator.generate([prompt]))
    assert written[0].shape == (1, 48)
    list(generator.generate([prompt], max_new_tokens=2))
    model.generation_config.max_new_tokens = 3
    list(generator.generate([prompt]))
    length = len(tokenizer(prompt)["input_ids"][:-1])
    assert [row.shape[1] - length for row in written[1:]] == [2, 3]
    assert [str(warning.message) for warning in recwarn if "max_length" in str(warning.message)] == []
    with pytest.raises(ValueError, match="line 1 of the input is a text of .* tokens, more than the 48 positions"):
        list(generator.generate(["red dog " * 30]))


def test_a_model_that_writes_no_text_is_refused():
    with pytest.raises(
        ValueError, match="^a VanillaTransformerForMaskedLM writes no text; give an encoder-decoder or"
    ):
        TextGenerator(tiny_model("encoder-only", vocab_size=280), word_tokenizer())


def test_the_name_before_version_0_2_still_works(folder, translator):
    from vanilla_transformer.generation.translate import Translator

    said = []
    assert list(Translator.from_pretrained(folder).translate(SOURCES[:2], report=said.append)) == list(
        translator.generate(SOURCES[:2])
    )
