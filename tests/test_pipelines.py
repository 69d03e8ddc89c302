"""The pipelines that transformers 5 dropped, registered by this package, and transformers' own with this package's heads."""

import importlib
import math
import subprocess
import sys
import warnings
from functools import partial

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForQuestionAnswering,
    GenerationConfig,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers import pipeline as any_pipeline
from transformers import pipelines as library
from transformers.pipelines import PIPELINE_REGISTRY

import vanilla_transformer as vt
from runs import WORDS, reversed_words, save_translator, word_tokenizer
from tiny import randomise, tiny_model
from vanilla_transformer import loading
from vanilla_transformer.conversion.folders import convert_folder
from vanilla_transformer.generation.sentences import split_sentences, texts_within
from vanilla_transformer.generation.text_generator import TextGenerator
from vanilla_transformer.pipelines import TranslationPipeline, register
from vanilla_transformer.tokenization import train_tokenizer
from vanilla_transformer.utils.log import no_log

pipeline = partial(any_pipeline, device="cpu")

TEXTS = ["red dog", "green house tree river stone", "sun", "blue cat sun red", "tree"]


def words_tokenizer(max_length=None, cls=None, template="$A </s>", pair=None, more=()):
    """One token a word, as a tokenizer that was made for a model of transformers."""
    specials = ["<pad>", "</s>", "<unk>", "<cls>", *more]
    vocabulary = {
        word: i
        for i, word in enumerate(
            [*specials, *WORDS, *map(str.capitalize, WORDS), ".", ":", "summarize", "translate", "?", "!"]
        )
    }
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(specials)
    ids = [(token, vocabulary[token]) for token in ("</s>", "<cls>")]
    backend.post_processor = processors.TemplateProcessing(single=template, pair=pair, special_tokens=ids)
    options = {"model_max_length": max_length} if max_length else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", cls_token=cls, **options
    )


def foreign(kind, tokenizer, **options):
    """A tiny model with random weights, of transformers' own or `ours`."""
    torch.manual_seed(1 if kind == "marian" else 0)
    sizes = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    if kind == "t5":
        config = T5Config(d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, **sizes, **options)
        return randomise(T5ForConditionalGeneration(config), scale=0.5).eval()
    if kind == "ours":
        sizes |= {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 24}
        config = vt.VanillaTransformerConfig(**sizes, bos_token_id=0, max_position_embeddings=24, **options)
        return randomise(vt.VanillaTransformerForConditionalGeneration(config), scale=0.5).eval()
    names = ("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads")
    sizes |= dict.fromkeys(names, 2) | dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24)
    sizes |= {"d_model": 16, "max_position_embeddings": 24, "forced_eos_token_id": None, "bos_token_id": 1}
    classes = {
        "marian": (MarianConfig, MarianMTModel),
        "bart": (BartConfig, BartForConditionalGeneration),
        "m2m": (M2M100Config, M2M100ForConditionalGeneration),
    }
    config_class, model_class = classes[kind]
    # of all of these, weights with which different texts get different outputs
    seed, scale = (1, 0.2) if kind == "marian" else (0, 0.5)
    return randomise(model_class(config_class(**sizes, **options)), seed, scale).eval()


@pytest.fixture(params=["ours", "marian", "bart", "t5"])
def translator(request, tmp_path):
    """A folder, for `pipeline(model=folder)`."""
    if request.param == "ours":
        save_translator(tmp_path)
    else:
        tokenizer = words_tokenizer()
        foreign(request.param, tokenizer).save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
    return str(tmp_path)


def test_registering_again_changes_nothing():
    """Reported in huggingface/transformers#25453 and #24760."""
    before = dict(PIPELINE_REGISTRY.supported_tasks)
    aliases = PIPELINE_REGISTRY.task_aliases
    register()
    importlib.reload(vt)
    assert before == PIPELINE_REGISTRY.supported_tasks and PIPELINE_REGISTRY.task_aliases is aliases
    assert PIPELINE_REGISTRY.check_task("translation_en_XX_to_de_DE")[0] == "translation"
    assert PIPELINE_REGISTRY.check_task("ner")[0] == "token-classification"
    assert "translation" in PIPELINE_REGISTRY.get_supported_tasks()
    with pytest.raises(KeyError, match="Unknown task translate"):
        PIPELINE_REGISTRY.check_task("translate")
    with pytest.raises(KeyError, match="removed"):
        library.check_task("text2text-generation")


@pytest.mark.parametrize("first", ["vanilla_transformer.pipelines", "transformers.pipelines"])
def test_tasks_are_known_whichever_module_is_imported_first(first):
    code = (
        f"import vanilla_transformer, {first}, transformers\n"
        "from transformers.pipelines import PIPELINE_REGISTRY as registry\n"
        "print(registry.supported_tasks['translation']['impl'].__name__, hasattr(transformers.pipeline, '_loads_safely'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "TranslationPipeline True\n", done.stderr


def test_a_task_that_somebody_else_has_registered_stays(monkeypatch):
    theirs = {"impl": object, "pt": ()}
    monkeypatch.setitem(PIPELINE_REGISTRY.supported_tasks, "translation", theirs)
    register()
    assert PIPELINE_REGISTRY.supported_tasks["translation"] is theirs


def test_transformers_refuses_the_names_without_this_package():
    """Why the package takes them off `transformers.pipelines.REMOVED_TASKS`, which is asked before the registry.

    Reported in huggingface/transformers#43256 and #43827.
    """
    code = (
        "from transformers import pipelines\n"
        "assert {'translation', 'summarization', 'question-answering'} <= pipelines.REMOVED_TASKS.keys()\n"
        "import vanilla_transformer\n"
        "for task in ('translation', 'translation_en_to_de', 'summarization', 'question-answering'):\n"
        "    pipelines.check_task(task)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error:::vanilla_transformer", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.parametrize("num_beams", [1, 3])
def test_batches_are_as_each_text_alone(translator, num_beams):
    use = pipeline("translation", model=translator)
    options = {"num_beams": num_beams, "max_new_tokens": 6, "scores": True}
    alone = [use(text, **options)[0] for text in TEXTS]
    assert len({record["translation_text"] for record in alone}) > 1
    for batch_size in (1, 2, 5):
        together = use(TEXTS, batch_size=batch_size, **options)
        assert [r["translation_text"] for r in together] == [r["translation_text"] for r in alone]
        for one, other in zip(together, alone, strict=True):
            assert one.keys() == {"translation_text", "score"} and math.isclose(
                one["score"], other["score"], rel_tol=1e-4
            )
    assert [records[0] for records in use((text for text in TEXTS), **options)] == alone
    assert use(tuple(TEXTS), **options) == alone


def test_outputs_and_scores_are_the_models(translator):
    use = pipeline("translation", model=translator)
    inputs = use.tokenizer(TEXTS[1], return_tensors="pt")
    output = use.model.generate(
        **inputs,
        num_beams=3,
        num_return_sequences=2,
        max_new_tokens=6,
        return_dict_in_generate=True,
        output_scores=True,
    )
    records = use(TEXTS[1], num_beams=3, num_return_sequences=2, max_new_tokens=6, scores=True, return_tensors=True)
    for record, row, score in zip(records, output.sequences, output.sequences_scores, strict=True):
        assert record["translation_token_ids"].tolist() == row.tolist() and "translation_text" not in record
        assert math.isclose(record["score"], score.item(), rel_tol=1e-5)
    both = use(TEXTS[:2], num_beams=3, num_return_sequences=2, max_new_tokens=6)
    assert [len(records) for records in both] == [2, 2] and both[1] == use(
        TEXTS[1], num_beams=3, num_return_sequences=2, max_new_tokens=6
    )
    settings = GenerationConfig(num_beams=3, num_return_sequences=2, max_new_tokens=6)
    in_one = use(["", TEXTS[1]], batch_size=2, generation_config=settings)
    assert in_one == [[{"translation_text": ""}] * 2, both[1]] == [use("", generation_config=settings), in_one[1]]
    assert use(TEXTS[1], num_beams=3, max_new_tokens=6, return_tensors=True, return_text=True)[0].keys() == {
        "translation_text",
        "translation_token_ids",
    }


def test_our_models_write_what_the_translator_writes(tmp_path):
    save_translator(tmp_path)
    texts = [source for source, _ in reversed_words(9, 3)]
    expected = [best[0].text for best in TextGenerator.from_pretrained(tmp_path, device="cpu").generate(texts)]
    use = pipeline("translation", model=str(tmp_path), batch_size=4)
    assert [record["translation_text"] for record in use(texts)] == expected
    short = pipeline("translation", model=str(tmp_path), max_new_tokens=2, return_tensors=True)
    assert all(record["translation_token_ids"].shape == (3,) for record in short(texts[:3]))  # with the start token
    assert short("red", max_new_tokens=1)[0]["translation_token_ids"].shape == (2,)


def test_empty_inputs(translator):
    use = pipeline("translation", model=translator)
    assert use([]) == []
    assert use("") == [{"translation_text": ""}] and use(" \n")[0]["translation_text"] == ""
    assert use("", scores=True, return_tensors=True)[0]["score"] is None
    with_gaps = ["", TEXTS[0], " ", TEXTS[1], ""]
    for batch_size in (1, 2, 5):
        found = [r["translation_text"] for r in use(with_gaps, batch_size=batch_size, max_new_tokens=5)]
        assert found == [use(text, max_new_tokens=5)[0]["translation_text"] for text in with_gaps]
    for wrong in (7, [3], ["red", None]):
        with pytest.raises(TypeError, match="takes a text or a list of texts, not"):
            use(wrong)


def test_summaries_and_prefixes_of_the_configuration():
    tokenizer = words_tokenizer()
    of_task = {"prefix": "summarize : ", "num_beams": 2, "max_length": 5, "min_length": 4, "unheard_of": 1}
    of_languages = {"prefix": "translate red : ", "max_length": 4}
    params = {"summarization": of_task, "translation_en_to_de": of_languages}
    model = foreign("t5", tokenizer, task_specific_params=params)
    expected = model.generate(
        **tokenizer("summarize : red dog", return_tensors="pt"), num_beams=2, max_length=5, min_length=4
    )
    use = pipeline("summarization", model=model, tokenizer=tokenizer)
    assert use("red dog", return_tensors=True)[0]["summary_token_ids"].tolist() == expected[0].tolist()
    assert use("red dog")[0].keys() == {"summary_text"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        longer = use("red dog", max_new_tokens=9, min_new_tokens=9, num_beams=1, return_tensors=True)
    assert longer[0]["summary_token_ids"].shape == (10,)

    expected = model.generate(**tokenizer("translate red : sun", return_tensors="pt"), max_length=4)[0].tolist()
    by_name = pipeline("translation_en_to_de", model=model, tokenizer=tokenizer)
    by_languages = pipeline("translation", model=model, tokenizer=tokenizer, src_lang="en", tgt_lang="de")
    for use in (by_name, by_languages):
        assert use("sun", return_tensors=True)[0]["translation_token_ids"].tolist() == expected
    plain = by_name("sun", return_tensors=True, prefix="")[0]["translation_token_ids"].tolist()
    assert plain == model.generate(**tokenizer("sun", return_tensors="pt"), max_length=4)[0].tolist() != expected
    with pytest.raises(ValueError, match="src_lang='en', tgt_lang='fi'.*neither the tokenizer nor"):
        pipeline("translation", model=model, tokenizer=tokenizer)("sun", src_lang="en", tgt_lang="fi")


def test_a_converted_model_keeps_the_prefixes_and_searches_of_its_tasks(tmp_path):
    tokenizer = words_tokenizer()
    params = {
        "summarization": {"prefix": "summarize : ", "num_beams": 2, "max_length": 6},
        "translation_en_to_de": {"prefix": "translate red : ", "max_length": 5},
    }
    theirs = foreign("t5", tokenizer, task_specific_params=params)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    convert_folder(tmp_path / "theirs", tmp_path / "ours", log=no_log)
    convert_folder(tmp_path / "ours", tmp_path / "back", to_transformers=True, family="t5", log=no_log)
    for task, text in (("translation_en_to_de", "sun dog"), ("summarization", "red dog tree")):
        expected = pipeline(task, model=theirs, tokenizer=tokenizer)(text)
        for folder in ("ours", "back"):
            assert pipeline(task, model=str(tmp_path / folder))(text) == expected
        without = pipeline(task, model=str(tmp_path / "ours"), prefix="")(text)
        assert without == pipeline(task, model=theirs, tokenizer=tokenizer, prefix="")(text)


class Multilingual(PreTrainedTokenizerFast):
    """As mBART's and NLLB's: the source begins with its language's token, the target with another's."""

    @property
    def src_lang(self):
        return self._language

    @src_lang.setter
    def src_lang(self, language):
        self._language = language
        token = (language, self.convert_tokens_to_ids(language))
        self._tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{language} $A </s>", special_tokens=[token, ("</s>", 1)]
        )


def test_languages_of_multilingual_tokenizers():
    plain = words_tokenizer(more=["en_XX", "de_DE"])
    tokenizer = Multilingual(tokenizer_object=plain.backend_tokenizer, **plain.special_tokens_map)
    model = foreign("m2m", tokenizer)
    english, german = tokenizer.convert_tokens_to_ids(["en_XX", "de_DE"])
    row = torch.tensor([[english, *plain("red dog")["input_ids"]]])
    expected = model.generate(row, attention_mask=torch.ones_like(row), forced_bos_token_id=german, max_new_tokens=5)
    assert expected[0, 1] == german
    for task, options in (
        ("translation", {"src_lang": "en_XX", "tgt_lang": "de_DE"}),
        ("translation_en_XX_to_de_DE", {}),
        ("translation_de_DE_to_en_XX", {"src_lang": "en_XX", "tgt_lang": "de_DE"}),
    ):
        use = pipeline(task, model=model, tokenizer=tokenizer, max_new_tokens=5)
        assert (
            use("red dog", return_tensors=True, **options)[0]["translation_token_ids"].tolist() == expected[0].tolist()
        )
    with pytest.raises(ValueError, match="no language 'fi_FI'"):
        use("red dog", tgt_lang="fi_FI")


def test_sentences():
    text = ' He said "Yes!" (No.) e.g. this costs 3.5 euros? Done…\n\nNew line here\nこれは。短い！文'
    sentences = split_sentences(text)
    assert "".join(gap + sentence for gap, sentence in sentences) == text
    assert [sentence for _, sentence in sentences] == [
        'He said "Yes!"',
        "(No.)" + " e.g. this costs 3.5 euros?",
        "Done…",
        "New line here",
        "これは。",
        "短い！",
        "文",
    ]
    assert texts_within(text, lambda part: len(part) <= 47)[0] == (" ", text[1:48])
    assert split_sentences(" \n ") == []
    with pytest.raises(ValueError, match="^New line here$"):
        texts_within("Hm.\nNew line here", lambda part: len(part) <= 9)


@pytest.mark.parametrize("kind", ["marian", "t5", "ours"])
def test_long_texts(kind):
    tokenizer = words_tokenizer(max_length=24 if kind == "t5" else None)
    model = foreign(kind, tokenizer)
    sentences = [
        "Red dog cat tree river .",
        "Blue house stone !",
        "Sun sun sun sun sun sun sun sun ?",
        "Tree .",
        "Cat dog .",
    ]
    text = f"{sentences[0]} {sentences[1]}  {sentences[2]}\n{sentences[3]} {sentences[4]} {sentences[0]}"
    use = pipeline("translation", model=model, tokenizer=tokenizer, max_new_tokens=4, scores=True)
    groups = [f"{sentences[0]} {sentences[1]}  {sentences[2]}\n{sentences[3]}", f"{sentences[4]} {sentences[0]}"]
    assert [len(tokenizer(group)["input_ids"]) for group in groups] == [22, 10]
    parts = use(groups)
    together = use(text)[0]
    assert together["translation_text"] == " ".join(part["translation_text"] for part in parts)
    assert math.isclose(together["score"], sum(part["score"] for part in parts), rel_tol=1e-5)
    in_batch = use(["sun", text, "tree"], batch_size=2)
    assert in_batch[1]["translation_text"] == together["translation_text"]
    alone = use("tree")[0]
    assert in_batch[2]["translation_text"] == alone["translation_text"]
    assert in_batch[2]["score"] == pytest.approx(alone["score"], rel=1e-4)
    smaller = use(text, max_source_tokens=10)[0]["translation_text"]
    by_line = [sentences[i] for i in (0, 1, 2)] + [f"{sentences[3]} {sentences[4]}", sentences[0]]
    expected = [part["translation_text"] for part in use(by_line)]
    assert smaller == f"{expected[0]} {expected[1]}  {expected[2]}\n{expected[3]} {expected[4]}"
    with pytest.raises(ValueError, match="begins 'Red dog cat.*has 31 tokens, more than the 24 that can be read"):
        use(text, long_inputs="refuse")
    cut = use(text, truncation=True, return_tensors=True)[0]["translation_token_ids"]
    row = tokenizer(text, truncation=True, max_length=24, return_tensors="pt")
    assert cut.tolist() == model.generate(**row, max_new_tokens=4)[0].tolist()
    if kind == "ours":  # sinusoids have no end, and who asks for more gets it
        whole = model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=4)[0]
        asked = use(text, max_source_tokens=31, return_tensors=True)[0]["translation_token_ids"]
        assert asked.tolist() == whole.tolist()
    with pytest.raises(ValueError, match="31 tokens.*its sentence 'Sun sun.* alone.*long_inputs='truncate'"):
        use(text, max_source_tokens=8)
    with pytest.raises(
        ValueError, match="read in 2 parts, and the 2 best outputs of each do not tell the 2 best of the whole"
    ):
        use(text, num_beams=2, num_return_sequences=2)
    with pytest.raises(ValueError, match="long_inputs='cut' is none of"):
        use(text, long_inputs="cut")


def test_separate_target_tokenizers_and_saving(tmp_path, monkeypatch):
    source, target = word_tokenizer(), train_tokenizer([t for _, t in reversed_words(80, 4)], 275)
    save_translator(tmp_path / "a", source, target_vocab_size=len(target))
    with pytest.raises(ValueError, match="holds no tokenizer of the target side in target_tokenizer; save"):
        pipeline("translation", model=str(tmp_path / "a"))
    target.save_pretrained(tmp_path / "a" / loading.TARGET_TOKENIZER)
    use = pipeline("translation", model=str(tmp_path / "a"))
    expected = [best[0].text for best in TextGenerator.from_pretrained(tmp_path / "a", device="cpu").generate(TEXTS)]
    assert [record["translation_text"] for record in use(TEXTS, batch_size=2)] == expected
    use.save_pretrained(tmp_path / "b")
    assert (
        not list((tmp_path / "b").glob("*to_text.py"))
        and "custom_pipelines" not in (tmp_path / "b/config.json").read_text()
    )
    assert pipeline("translation", model=str(tmp_path / "b"))(TEXTS) == use(TEXTS)
    given = pipeline("translation", model=use.model, tokenizer=source, target_tokenizer=target)
    assert given(TEXTS) == use(TEXTS)
    with pytest.raises(ValueError, match="target tokenizer has 280 tokens but the model 275"):
        pipeline("translation", model=use.model, tokenizer=source, target_tokenizer=source)

    # of a Hub id, the revision the model has; the commit is an attribute without a public name
    asked = {}
    monkeypatch.setattr(use.model.config, "_commit_hash", "abc", raising=False)
    monkeypatch.setattr(use.model, "name_or_path", "me/model")
    monkeypatch.setattr(loading.sources, "resolve_revision", lambda name, revision: revision)
    monkeypatch.setattr(
        loading.Source, "file", lambda source, name: path if (path := tmp_path / "a" / name).is_file() else None
    )
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **options: asked.update(options) or target)
    pipeline("translation", model=use.model, tokenizer=source)
    assert asked["revision"] == "abc" and asked["subfolder"] == loading.TARGET_TOKENIZER
    assert asked["trust_remote_code"] is False


def test_pipelines_refuse_models_that_do_not_write():
    """Reported in huggingface/transformers#43256 and #43827."""
    tokenizer = word_tokenizer()
    for architecture in ("encoder-only", "decoder-only"):
        model = tiny_model(architecture, vocab_size=len(tokenizer))
        with pytest.raises(ValueError, match="translation needs an encoder-decoder that generates"):
            pipeline("translation", model=model, tokenizer=tokenizer)
    with pytest.raises(ValueError, match="needs a tokenizer"):
        TranslationPipeline(tiny_model(vocab_size=280))
    wrong = tiny_model("encoder-only", vocab_size=len(tokenizer))
    with pytest.raises(ValueError, match="MaskedLM does not say where answers"):
        pipeline("question-answering", model=wrong, tokenizer=tokenizer)(question="red", context="dog")


# question answering

CONTEXT = "red dog  cat tree. river stone, sun blue green house dog cat! red sun tree river stone green"
EXAMPLES = [
    {"question": "red dog", "context": CONTEXT},
    {"question": "sun", "context": "tree"},
    {"question": "house cat", "context": CONTEXT[20:60]},
]


def finder(kind, **options):
    """A model with random weights that says where answers start and end, and its tokenizer."""
    if kind == "bert":
        tokenizer = words_tokenizer(
            64, cls="<cls>", template="<cls> $A </s>", pair="<cls> $A </s> $B:1 </s>:1", more=["[MASK]"]
        )
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
            max_position_embeddings=64, pad_token_id=0,
        )  # fmt: skip
        return randomise(BertForQuestionAnswering(config), scale=0.4).eval(), tokenizer
    tokenizer = train_tokenizer([CONTEXT, "Grün wird die Straße, 日本語。", *WORDS], 275, min_frequency=1, **options)
    head = vt.VanillaTransformerForQuestionAnswering
    return tiny_model("encoder-only", model_class=head, vocab_size=len(tokenizer), scale=0.4), tokenizer


@pytest.mark.parametrize("kind", ["bert", "ours"])
def test_answers_are_the_most_probable_spans(kind):
    """Against the definition, on one window: all pairs of tokens."""
    model, tokenizer = finder(kind)
    use = pipeline("question-answering", model=model, tokenizer=tokenizer, align_to_words=False)
    encoded = tokenizer("red dog", CONTEXT, return_tensors="pt", return_offsets_mapping=True)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    output = model(**encoded)
    inside = [i for i, part in enumerate(encoded.sequence_ids(0)) if part == 1]
    special = [0] if kind == "bert" else []
    start, end = (
        logits[0][[*special, *inside]].softmax(0)[len(special) :]
        for logits in (output.start_logits, output.end_logits)
    )
    spans = {}
    for i, first in enumerate(inside):
        for j, last in enumerate(inside):
            if i <= j < i + 15:
                text = CONTEXT[offsets[first][0] : offsets[last][1]]
                place = offsets[first][0] + len(text) - len(text.lstrip())
                if text.strip():
                    key = (place, place + len(text.strip()))
                    spans[key] = max(spans.get(key, 0), (start[i] * end[j]).item())
    expected = sorted(spans.items(), key=lambda item: -item[1])[:4]
    found = use(question="red dog", context=CONTEXT, top_k=4)
    for record, ((first, last), score) in zip(found, expected, strict=True):
        assert (record["start"], record["end"], record["answer"]) == (first, last, CONTEXT[first:last])
        assert math.isclose(record["score"], score, rel_tol=1e-4)
    assert use(EXAMPLES[0]) == found[0]
    short = use(EXAMPLES[0], max_answer_len=1, top_k=30)
    assert (
        all(record["answer"] in CONTEXT.split() or " " not in record["answer"] for record in short) and len(short) > 5
    )


@pytest.mark.parametrize("kind", ["bert", "ours"])
def test_answers_in_batches_are_those_alone(kind):
    model, tokenizer = finder(kind)
    use = pipeline("question-answering", model=model, tokenizer=tokenizer, top_k=3, max_seq_len=20, doc_stride=4)
    alone = [use(example) for example in EXAMPLES]
    for side in ("right", "left") if kind == "ours" else ("right",):
        tokenizer.padding_side = side
        for batch_size in (1, 2, 8):
            together = use(EXAMPLES, batch_size=batch_size)
            for records, others in zip(together, alone, strict=True):
                assert [r["answer"] for r in records] == [r["answer"] for r in others]
                assert [r["score"] for r in records] == pytest.approx([r["score"] for r in others], rel=1e-4)
    questions = [example["question"] for example in EXAMPLES]
    assert use(question=questions, context=CONTEXT) == [use(question=q, context=CONTEXT) for q in questions]
    assert use([]) == [] and [len(r) for r in use(iter_examples())] == [3, 1, 3]


def iter_examples():
    yield from EXAMPLES


@pytest.mark.parametrize("kind", ["bert", "ours"])
def test_windows_see_all_of_a_long_context(kind):
    """A context that repeats itself far beyond a window: the answers of windows are compared, and each is found."""
    model, tokenizer = finder(kind)
    use = pipeline("question-answering", model=model, tokenizer=tokenizer, align_to_words=False)
    context = " ".join([CONTEXT] * 6)
    windows = list(
        use.preprocess({"question": "red", "context": context}, max_seq_len=32, doc_stride=8, align_to_words=False)
    )
    assert len(windows) > 4 and [w["is_last"] for w in windows] == [False] * (len(windows) - 1) + [True]
    covered = sorted({place for w in windows for place in range(w["spans"][0][0], w["spans"][-1][1])})
    assert covered == list(range(len(context)))
    for before, after in zip(windows, windows[1:], strict=False):
        assert after["spans"][:8] == before["spans"][-8:]
    assert all(window["input_ids"].shape[1] <= 32 for window in windows)
    best = use(question="red", context=context, max_seq_len=32, doc_stride=8, top_k=5)
    logits = [model(**{k: w[k] for k in tokenizer.model_input_names if k in w}) for w in windows]
    highest = max(
        (out.start_logits[0][w["is_context"][0]][i] + out.end_logits[0][w["is_context"][0]][j]).item()
        for out, w in zip(logits, windows, strict=True)
        for i in range(len(w["spans"]))
        for j in range(i, min(len(w["spans"]), i + 15))
        if context[w["spans"][i][0] : w["spans"][j][1]].strip()
    )
    reached = [
        (out.start_logits[0][w["is_context"][0]][i] + out.end_logits[0][w["is_context"][0]][j]).item()
        for out, w in zip(logits, windows, strict=True)
        for i in range(len(w["spans"]))
        for j in range(i, min(len(w["spans"]), i + 15))
        if context[w["spans"][i][0] : w["spans"][j][1]].strip() == best[0]["answer"]
    ]
    assert math.isclose(max(reached), highest, rel_tol=1e-5)
    assert [r["score"] for r in best] == sorted((r["score"] for r in best), reverse=True)
    assert len({(r["start"], r["end"]) for r in best}) == 5


def point_at(model, tokenizer, start, end):
    """Make a head prefer two tokens, whatever stands around them."""

    def forward(input_ids, **_):
        return {
            "start_logits": (input_ids == tokenizer.convert_tokens_to_ids(start)).float() * 9,
            "end_logits": (input_ids == tokenizer.convert_tokens_to_ids(end)).float() * 9,
        }

    model.forward = forward


def test_no_answer():
    model, tokenizer = finder("bert")
    use = pipeline("question-answering", model=model, tokenizer=tokenizer, handle_impossible_answer=True)
    point_at(model, tokenizer, "<cls>", "<cls>")
    nothing = use(EXAMPLES[0])
    assert nothing["answer"] == "" and nothing["start"] == nothing["end"] == 0 and nothing["score"] > 0.9
    assert use(EXAMPLES[0], handle_impossible_answer=False)["answer"] != ""
    point_at(model, tokenizer, "river", "stone")
    assert use(EXAMPLES[0])["answer"] == "river stone"

    # one window that has an answer outweighs all those that have none
    def one_has(input_ids, **_):
        has = (input_ids == tokenizer.convert_tokens_to_ids("house")).any(1, keepdim=True)
        scores = (input_ids == tokenizer.convert_tokens_to_ids("house")) * 9.0
        return dict.fromkeys(("start_logits", "end_logits"), scores + ~has * (input_ids == 3) * 8.0)

    model.forward = one_has
    found = use(question="red", context=CONTEXT, max_seq_len=12, doc_stride=0, top_k=2)
    assert found[0]["answer"] == "house" and CONTEXT[found[0]["start"] : found[0]["end"]] == "house"
    ours = pipeline("question-answering", model=finder("ours")[0], tokenizer=finder("ours")[1])
    with pytest.raises(ValueError, match="no special token first"):
        ours(EXAMPLES[0], handle_impossible_answer=True)
    with_start = pipeline(
        "question-answering", **dict(zip(("model", "tokenizer"), finder("ours", add_bos=True), strict=True))
    )
    assert len(with_start(EXAMPLES[0], handle_impossible_answer=True, top_k=2)) == 2


def test_characters_of_bytes_and_words():
    """Byte-level tokens: an answer never ends within a character; by default it never ends within a word."""
    model, tokenizer = finder("ours")
    context = "Die  Straße wird grün, 日本語。 Red"
    use = pipeline("question-answering", model=model, tokenizer=tokenizer)
    pieces = tokenizer.tokenize("Straße grün 日本語")
    lonely = [piece for piece in pieces if len(tokenizer.convert_tokens_to_string([piece]).encode()) and "Ã" in piece]
    assert lonely
    point_at(model, tokenizer, lonely[0], lonely[0])
    inside = use(question="red", context=context, align_to_words=False, top_k=1)
    assert context[inside["start"] : inside["end"]] == inside["answer"] != "" and "\ufffd" not in inside["answer"]
    word = use(question="red", context=context)
    assert word["answer"] in ("Straße", "grün") and inside["answer"] in word["answer"]
    for record in use(question="red", context=context, align_to_words=False, top_k=200):
        assert context[record["start"] : record["end"]] == record["answer"] == record["answer"].strip() != ""


def test_questions_that_cannot_be_asked():
    model, tokenizer = finder("bert")
    use = pipeline("question-answering", model=model, tokenizer=tokenizer)
    for example, match in (
        ({"question": " ", "context": "red"}, "the question of an example must be a text that is not empty"),
        ({"question": "red", "context": ""}, "the context of an example"),
        ({"question": "red"}, "a dictionary with a question and a context"),
        ({"question": "red " * 65, "context": "dog"}, "has 65 tokens, more than max_question_len=64"),
    ):
        with pytest.raises(ValueError, match=match):
            use(example)
    with pytest.raises(ValueError, match="windows of 8 tokens have room for 3 tokens.*3 in common"):
        use(question="red dog", context="cat", max_seq_len=8, doc_stride=3)
    with pytest.raises(ValueError, match="2 questions and 3 contexts"):
        use(question=["red"] * 2, context=["dog"] * 3)
    with pytest.raises(ValueError, match="either examples or question="):
        use(EXAMPLES, question="red")
    with pytest.raises(ValueError, match="top_k=0"):
        use(EXAMPLES[0], top_k=0)


# transformers' own, with the heads of this package


@pytest.mark.parametrize(
    ("task", "architecture", "head", "texts"),
    [
        ("text-classification", "encoder-only", vt.VanillaTransformerForSequenceClassification, TEXTS),
        ("text-classification", "decoder-only", vt.VanillaTransformerForSequenceClassification, TEXTS),
        ("text-classification", "encoder-decoder", vt.VanillaTransformerForSequenceClassification, TEXTS),
        ("token-classification", "encoder-only", vt.VanillaTransformerForTokenClassification, TEXTS),
        ("fill-mask", "encoder-only", vt.VanillaTransformerForMaskedLM, [f"{text} <mask>" for text in TEXTS]),
        ("feature-extraction", "encoder-only", vt.VanillaTransformerModel, TEXTS),
        ("text-generation", "decoder-only", vt.VanillaTransformerForCausalLM, TEXTS),
    ],
)
def test_the_librarys_pipelines_work_in_batches(task, architecture, head, texts, tmp_path):
    """Reported in huggingface/transformers#43256 and #43827."""
    special = {"mask_token": True} if task == "fill-mask" else {}
    tokenizer = train_tokenizer([s for s, _ in reversed_words(100, 0)], 280, **special)
    if task == "text-generation":
        tokenizer = train_tokenizer([s for s, _ in reversed_words(100, 0)], 280, add_eos=False)
        tokenizer.padding_side = "left"
    tiny_model(architecture, model_class=head, vocab_size=len(tokenizer), num_labels=3).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    use = pipeline(task, model=str(tmp_path))
    options = {"max_new_tokens": 5, "do_sample": False} if task == "text-generation" else {}
    alone = [use(text, **options) for text in texts]
    together = use(texts, batch_size=3, **options)
    if task == "feature-extraction":
        for one, other in zip(together, alone, strict=True):
            length = len(other[0])
            torch.testing.assert_close(torch.tensor(one)[0, :length], torch.tensor(other)[0], atol=1e-4, rtol=1e-4)
        return
    for one, other in zip(together, alone, strict=True):
        one, other = ([one], other) if isinstance(one, dict) else (one, other)
        assert len(one) == len(other) > 0
        for record, same in zip(one, other, strict=True):
            assert record.keys() == same.keys()
            for name, value in same.items():
                is_number = name == "score"
                assert (abs(record[name] - value) < 1e-4) if is_number else record[name] == value


@pytest.mark.parametrize(
    ("task", "architecture", "needed"),
    [
        ("text-generation", "encoder-only", "decoder-only"),
        ("text-generation", "encoder-decoder", "decoder-only"),
        ("fill-mask", "decoder-only", "encoder-only"),
        ("fill-mask", "encoder-decoder", "encoder-only"),
        ("translation", "decoder-only", "encoder-decoder"),
        ("summarization", "encoder-only", "encoder-decoder"),
    ],
)
def test_a_folder_with_another_head_is_refused_clearly(task, architecture, needed, tmp_path):
    """Reported in huggingface/transformers#43256 and #43827."""
    tokenizer = word_tokenizer()
    tiny_model(architecture, vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    sentence = f"needs architecture='{needed}', not '{architecture}', whose heads are VanillaTransformerFor"
    with pytest.raises(ValueError, match=sentence):
        pipeline(task, model=str(tmp_path))


def test_a_model_with_another_head_is_named(caplog):
    """Where transformers' own pipelines get a model and not a folder, they say so and go on.

    Reported in huggingface/transformers#43256 and #43827.
    """
    tokenizer = word_tokenizer()
    pipeline("text-classification", model=tiny_model("encoder-only", vocab_size=len(tokenizer)), tokenizer=tokenizer)
    said = caplog.text
    assert "VanillaTransformerForMaskedLM' is not supported for text-classification" in said
    assert "VanillaTransformerForSequenceClassification" in said
