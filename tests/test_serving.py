"""The server: answers equal to generate(), bounds that end in one sentence, clients that leave, and its end."""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from starlette.testclient import TestClient
from transformers import pipeline

import vanilla_transformer as vt
from runs import ROOT, load_script, reversed_words, save_translator, word_tokenizer
from tiny import tiny_model
from vanilla_transformer import cli
from vanilla_transformer.generation.text_generator import TextGenerator
from vanilla_transformer.serving.app import Server, create_app
from vanilla_transformer.serving.backends import load
from vanilla_transformer.serving.engine import BusyError, Engine, Item
from vanilla_transformer.serving.models import Generation, Output, Passage, ServedGenerator
from vanilla_transformer.serving.settings import ServerSettings
from vanilla_transformer.tokenization import train_tokenizer, train_wordpiece_tokenizer

SOURCES = [source for source, _ in reversed_words(24, 6)]
TEXTS = [source for source, _ in reversed_words(100, 0)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_translator(folder)
    (folder / "recipe.yaml").write_text("data: {source_language: en, target_language: de}")
    return folder


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    tokenizer = train_tokenizer(TEXTS, 280, add_eos=False)
    tokenizer.chat_template = (
        "{% for message in messages %}{{ raise_exception('no system') if message.role == 'system' }}"
        "{{ message.content }} {% endfor %}"
    )
    tiny_model("decoder-only", vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@contextlib.contextmanager
def serving(model, name="mine", **settings):
    """A client of a server, in this process, and the server."""
    loaded = load(model) if isinstance(model, os.PathLike) else model
    server = Server(loaded, name, ServerSettings(**settings))
    with TestClient(create_app(server), raise_server_exceptions=False) as client:
        yield client, server


@pytest.fixture(scope="module")
def client(folder):
    with serving(folder, source_language="en", target_language="de") as (client, _):
        yield client


@pytest.fixture(scope="module")
def lm(language_model):
    with serving(language_model, max_new_tokens=40) as (client, _):
        yield client


# Translation ---------------------------------------------------------------------------------------------------------


def test_translations_are_those_of_generate_however_they_come(client, folder):
    expected = [best[0].text for best in TextGenerator.from_pretrained(folder).generate(SOURCES)]
    answer = client.post("/translate", json={"q": SOURCES, "source": "en", "target": "de"})
    assert answer.status_code == 200 and answer.json() == {"translatedText": expected}
    with ThreadPoolExecutor(8) as pool:
        single = list(pool.map(lambda text: client.post("/translate", json={"q": text}).json(), SOURCES))
    assert single == [{"translatedText": text} for text in expected]
    metrics = client.get("/metrics").text
    counts = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    requests = 'vanilla_transformer_requests_total{path="/translate",status="200"}'
    assert float(counts[requests]) >= 25 and float(counts["vanilla_transformer_items_total"]) >= 48
    assert float(counts["vanilla_transformer_batch_items_count"]) < 49, "requests were computed together"
    assert float(counts["vanilla_transformer_generated_tokens_total"]) > 48


def test_paragraphs_and_blank_lines_stay_and_long_texts_are_split_at_sentences(client, folder):
    translator = TextGenerator.from_pretrained(folder)

    def alone(text):
        return next(translator.generate([text]))[0].text

    text = "\n\nRed dog\r\n\n  blue cat \n"
    wanted = f"\n\n{alone('Red dog')}\r\n\n  {alone('blue cat')} \n"
    assert client.post("/translate", json={"q": text}).json() == {"translatedText": wanted}
    # two sentences are within the 64 tokens of the model, and three are not
    sentence = "Xylophone, quartz jumping."
    assert 21 < len(word_tokenizer()(sentence)["input_ids"]) < 32
    two = alone(f"{sentence} {sentence}")
    wanted = f"{two} {two} {alone(sentence)}\n{alone(sentence)}"
    answer = client.post("/translate", json={"q": " ".join([sentence] * 5) + "\n" + sentence})
    assert answer.json() == {"translatedText": wanted}
    for empty in ("", " \n\n"):
        assert client.post("/translate", json={"q": empty}).json() == {"translatedText": empty}
    assert client.post("/translate", json={"q": []}).json() == {"translatedText": []}


def test_alternatives_are_the_next_best_beams(client, folder):
    best = next(TextGenerator.from_pretrained(folder).generate([SOURCES[0]], n_best=3, num_beams=3))
    answer = client.post("/translate", json={"q": SOURCES[0], "alternatives": 2}).json()
    assert [answer["translatedText"], *answer["alternatives"]] == [hypothesis.text for hypothesis in best]
    answer = client.post("/translate", json={"q": [f"{SOURCES[0]}\n{SOURCES[1]}", SOURCES[0], ""], "alternatives": 2})
    assert [len(texts) for texts in answer.json()["alternatives"]] == [0, 2, 0]


def test_languages_are_those_of_the_run(client, folder):
    assert client.get("/languages").json() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    from vanilla_transformer.serving.command import run_languages

    assert run_languages(folder) == ("en", "de") and run_languages(folder / "gone") == (None, None)
    (folder / "other").mkdir()
    (folder / "other" / "recipe.yaml").write_text("- data")
    assert run_languages(folder / "other") == (None, None)


# CTranslate2 ---------------------------------------------------------------------------------------------------------


def test_ctranslate2_translates_as_torch_does(client, folder):
    with serving(load(folder, backend="ctranslate2"), source_language="en", target_language="de") as (other, _):
        for body in ({"q": SOURCES}, {"q": f"{SOURCES[0]}\n\n {SOURCES[1]}\n"}, {"q": SOURCES[:2], "alternatives": 2}):
            wanted = client.post("/translate", json=body).json()
            assert wanted["translatedText"] and other.post("/translate", json=body).json() == wanted
        assert other.get("/health").json()["task"] == "translation"
    with serving(load(folder, backend="ctranslate2", quantization="int8"), max_new_tokens=2) as (small, server):
        (text,) = small.post("/translate", json={"q": SOURCES[:1]}).json()["translatedText"]
        assert len(server.model.target_tokenizer(text)["input_ids"]) <= 3, "two tokens, and the end of the text"


def test_ctranslate2_continues_as_torch_does(lm, language_model):
    prompts = ["7", "red dog", "the old cat and the"]  # the first of one token
    with serving(load(language_model, backend="ctranslate2"), max_new_tokens=40) as (other, _):
        for change in (
            {"prompt": prompts},
            {"prompt": prompts[1:]},
            {"prompt": prompts[2], "max_tokens": 1},
            {"prompt": prompts[1], "stop": ["q", "e"], "max_tokens": 30},
        ):
            body = {"temperature": 0, "max_tokens": 12, **change}
            wanted, found = (each.post("/v1/completions", json=body).json() for each in (lm, other))
            assert found["choices"] == wanted["choices"] and found["usage"] == wanted["usage"]
        streams = [
            each.post("/v1/completions", json={"prompt": prompts[1], "temperature": 0, "stream": True}).text
            for each in (lm, other)
        ]
        texts = [
            [json.loads(line[6:])["choices"][0]["text"] for line in stream.splitlines() if line.startswith("data: {")]
            for stream in streams
        ]
        assert "".join(texts[0]) == "".join(texts[1]) and len(texts[1]) > 3
        body = {"prompt": "red", "temperature": 1, "max_tokens": 30, "seed": 5}
        answer = other.post("/v1/completions", json=body)
        assert answer.status_code == 422 and "seed has no effect with --backend ctranslate2" in answer.text
        del body["seed"]
        drawn = {other.post("/v1/completions", json=body).json()["choices"][0]["text"] for _ in range(3)}
        assert len(drawn) == 3


def test_what_ctranslate2_cannot_serve_is_one_sentence(folder, tmp_path):
    model = tiny_model("encoder-only", model_class=vt.VanillaTransformerForMaskedLM)
    model.save_pretrained(tmp_path / "bert")
    with pytest.raises(
        ValueError, match="--backend ctranslate2 runs models that write text, and this one is for fill-"
    ):
        load(tmp_path / "bert", backend="ctranslate2")
    with pytest.raises(ValueError, match="--quantization has no effect for --backend torch"):
        load(folder, quantization="int8")
    with pytest.raises(ValueError, match="there is no backend 'onnx'; there is torch, ctranslate2"):
        load(folder, backend="onnx")
    model = save_translator(tmp_path / "run")
    model.generation_config.bad_words_ids = [[7]]
    model.generation_config.save_pretrained(tmp_path / "run")
    with pytest.raises(
        ValueError, match="^CTranslate2 does not have the model's settings of generation bad_words_ids;"
    ):
        load(tmp_path / "run", backend="ctranslate2")


# Requests that are refused -------------------------------------------------------------------------------------------

JSON = {"Content-Type": "application/json"}
DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "body, status, sentence",
    [
        (b'{"q": "a', 400, "the body is not valid JSON (character 6: unterminated string"),
        (b'{"q": "\xff"}', 400, "the body cannot be read: it is not UTF-8"),
        (b'{"q": ' + DEEP + b"}", 400, "nested too deeply"),
        (b'{"q": ' + b"9" * 5000 + b"}", 400, "too long a number"),
        (b'{"q": "\\ud83d"}', 422, "half a character"),
        (b'{"q": "a", "source": "\\udcff"}', 422, "half a character"),
        (b'{"\\ud83d": 1, "q": "a"}', 422, "half a character"),
        (b"[" * 300 + b"]" * 300, 422, "the body must be a JSON object"),
        (b"", 422, "the body must be a JSON object"),
        (b"null", 422, "the body must be a JSON object"),
        (b"{}", 422, "q: field required."),
        (b'{"q": 5}', 422, "q: input should be a valid string."),
        (b'{"q": ["a", null]}', 422, "q.1: input should be a valid string."),
        (b'{"q": "a", "alternatives": "2"}', 422, "alternatives: input should be a valid integer."),
        (b'{"q": "a", "alternatives": 1e9}', 422, "alternatives: input should be a valid integer"),
        (b'{"q": "a", "alternatives": 1000000000}', 422, "alternatives=1000000000 is more than the 9 allowed."),
        (b'{"q": "a", "format": "html"}', 422, "format: input should be 'text'."),
        (b'{"q": "a", "max_tokens": 5}', 422, "max_tokens is not a field that this server knows; leave it out."),
        (b'{"q": "a", "target": "fr"}', 400, "target='fr' is not a language of this model; its target is 'de'."),
        (json.dumps({"q": "red " * 500}).encode(), 422, "has 1000 tokens, more than the 64"),
        (json.dumps({"q": ["a"] * 129}).encode(), 413, "129 texts are more than the 128"),
        (json.dumps({"q": "a\n" * 2000}).encode(), 413, "the texts are 2000 parts, more than the 1024"),
        (b" " * 20_000_000, 413, "the body has more than the 1,048,576 bytes"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(client, body, status, sentence):
    answer = client.post("/translate", content=body, headers=JSON)
    assert answer.status_code == status and list(answer.json()) == ["error"]
    said = answer.json()["error"]
    assert sentence in said and said.endswith(".") and "\n" not in said and len(said) < 300


def test_a_form_is_read_as_json_is_unless_a_web_page_sends_it(client):
    fields = {"q": SOURCES[:2], "source": "en", "target": "de", "alternatives": "1"}
    wanted = client.post("/translate", json={**fields, "alternatives": 1})
    assert client.post("/translate", data=fields).json() == wanted.json() and wanted.status_code == 200
    single = client.post("/translate", data={"q": "Grüner + & Hund"})
    assert single.json() == client.post("/translate", json={"q": "Grüner + & Hund"}).json()
    refused = client.post("/translate", data=fields, headers={"Origin": "https://evil.example"})
    assert refused.status_code == 403 and "a web page's form is not answered" in refused.json()["error"]
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for body, status, sentence in (
        (b"q=%ff", 400, "the form cannot be read"),
        (b"", 422, "q: field required."),
        (b"q=a&alternatives=two", 422, "alternatives: input should be a valid integer."),
        (b"q=a&x=1", 422, "x is not a field that this server knows"),
    ):
        answer = client.post("/translate", content=body, headers=form)
        assert answer.status_code == status and answer.json()["error"].startswith(sentence)
    assert client.post("/v1/completions", data={"prompt": "a"}).status_code == 422


def test_other_kinds_and_paths_are_refused_in_one_sentence(client, lm):
    assert client.post("/translate", content=b'{"q": "a"}').status_code == 422, "no JSON unless it is said to be"
    for path, body, form in (
        ("/v1/completions", {"prompt": "red dog"}, "message"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "message"),
        ("/predict", {"inputs": "a"}, None),
    ):
        answer = client.post(path, json=body)
        said = answer.json()["error"]
        assert answer.status_code == 400
        assert (said[form] if form else said) == "the model here is for translation; use POST /translate."
    said = lm.post("/translate", json={"q": "a"}).json()["error"]
    assert said == "the model here is for text-generation; use POST /v1/completions or /v1/chat/completions."
    assert lm.get("/languages").status_code == lm.post("/predict", json={"inputs": "a"}).status_code == 400
    for path in ("/load_model", "/reset", "/docs", "/redoc"):
        assert client.get(path).json() == {"error": f"there is no GET {path} here."}
    answer = client.get("/translate")
    assert answer.status_code == 405 and answer.json() == {"error": "/translate does not take GET."}


def test_only_who_may_is_answered(folder):
    local = {"allowed_hosts": ("localhost", "127.0.0.1", "::1")}
    with serving(folder, api_key="secret", cors_origins=("https://my.page",), **local) as (client, _):
        body = {"q": "red", "source": "en"}
        for host, status in (("evil.example", 403), ("evil.example:5000", 403), ("", 403), ("LOCALHOST:80", 200),
                             ("127.0.0.1", 200), ("[::1]:5000", 200)):  # fmt: skip
            assert client.get("/health", headers={"Host": host}).status_code == status, host
        client.headers["Host"] = "localhost"
        for given, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "Bearer secret"}, 200),
        ):
            for path in ("/metrics", "/languages", "/v1/models"):
                assert client.get(path, headers=given).status_code == status
            assert client.post("/translate", json=body, headers=given).status_code == status
        assert client.post("/translate", json={**body, "api_key": "secret"}).status_code == 200
        refused = client.post("/translate", json={**body, "api_key": "sécret"})
        assert refused.json() == {"error": "an API key is needed: send Authorization: Bearer KEY."}
        allowed = client.get("/health", headers={"Origin": "https://my.page"})
        assert allowed.headers["access-control-allow-origin"] == "https://my.page"
        assert "access-control-allow-origin" not in client.get("/health", headers={"Origin": "https://x.y"}).headers
    with serving(folder) as (client, _):
        answer = client.get("/health", headers={"Origin": "https://my.page", "Host": "any"})
        assert answer.status_code == 200 and not [name for name in answer.headers if name.startswith("access-control")]


# Language models -----------------------------------------------------------------------------------------------------


def completion(model, prompt, tokens):
    """The greedy one, by generate() itself."""
    translator = TextGenerator.from_pretrained(model)
    ids = translator.tokenizer(prompt, return_tensors="pt")
    written = translator.model.generate(**ids, max_new_tokens=tokens, do_sample=False)[0, ids.input_ids.shape[1] :]
    return translator.tokenizer.decode(written, skip_special_tokens=True)


def test_completions_continue_the_whole_prompt(lm, language_model):
    prompts = ["red dog", "green tree stone sun river"]
    expected = [completion(language_model, prompt, 12) for prompt in prompts]
    body = {"prompt": prompts, "max_tokens": 12, "temperature": 0, "model": "mine", "user": "me", "n": 1}
    answer = lm.post("/v1/completions", json=body).json()
    assert [choice["text"] for choice in answer["choices"]] == expected and all(expected)
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "length"]
    tokenizer = TextGenerator.from_pretrained(language_model).tokenizer
    read = sum(len(tokenizer(prompt)["input_ids"]) for prompt in prompts)
    assert answer["usage"] == {"prompt_tokens": read, "completion_tokens": 24, "total_tokens": read + 24}
    answer = lm.post("/v1/completions", json={**body, "prompt": prompts[0], "echo": True}).json()
    assert answer["choices"][0]["text"] == prompts[0] + expected[0]
    assert lm.get("/v1/models").json()["data"][0]["id"] == "mine"


def events(answer):
    lines = [line for line in answer.text.split("\n\n") if line]
    assert answer.headers["content-type"].startswith("text/event-stream") and lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_streams_grow_to_the_same_texts(lm):
    body = {"prompt": ["red dog", "sun"], "max_tokens": 12, "temperature": 0}
    whole = lm.post("/v1/completions", json=body).json()
    pieces = events(
        lm.post("/v1/completions", json={**body, "stream": True, "stream_options": {"include_usage": True}})
    )
    assert len(pieces) > 8 and pieces[-1]["usage"] == whole["usage"]
    for index, choice in enumerate(whole["choices"]):
        of_choice = [c for piece in pieces for c in piece["choices"] if c["index"] == index]
        assert "".join(c["text"] for c in of_choice) == choice["text"]
        assert [c["finish_reason"] for c in of_choice][-1] == choice["finish_reason"]
    messages = [{"role": "user", "content": "red dog"}]
    chat = {"messages": messages, "max_completion_tokens": 9, "temperature": 0}
    text = lm.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]
    pieces = [
        piece["choices"][0]["delta"]
        for piece in events(lm.post("/v1/chat/completions", json={**chat, "stream": True}))
    ]
    assert text["role"] == pieces[0]["role"] == "assistant" and text["content"]
    assert "".join(piece.get("content", "") for piece in pieces) == text["content"]


def test_chats_follow_the_template(lm, language_model, client):
    messages = [{"role": "user", "content": "red dog"}, {"role": "assistant", "content": "sun"}]
    answer = lm.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 6, "temperature": 0}).json()
    assert answer["choices"][0]["message"]["content"] == completion(language_model, "red dog sun ", 6)
    for wrong, sentence in (
        ([{"role": "system", "content": "a"}], "the chat template refuses these messages: no system."),
        ([{"role": "user", "content": "a</s>b"}], "a message spells out the special token '</s>'; leave it out."),
        ([], "messages: list should have at least 1 item"),
        ([{"role": "tool", "content": "a"}], "messages.0.role: input should be 'system'"),
    ):
        answer = lm.post("/v1/chat/completions", json={"messages": wrong})
        assert answer.status_code == 422 and answer.json()["error"]["message"].startswith(sentence)


def test_stop_texts_end_an_output_and_seeds_repeat_one(lm):
    body = {"prompt": "red dog", "max_tokens": 20, "temperature": 0}
    text = lm.post("/v1/completions", json=body).json()["choices"][0]["text"]
    stop = text[4:6]
    place = text.find(stop)
    answer = lm.post("/v1/completions", json={**body, "stop": ["never", stop]}).json()
    assert answer["choices"][0]["text"] == text[:place] and answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < 20
    pieces = events(lm.post("/v1/completions", json={**body, "stop": stop, "stream": True}))
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == text[:place]
    drawn = {**body, "temperature": 1.0, "top_p": 0.9}
    texts = [
        lm.post("/v1/completions", json={**drawn, "seed": seed}).json()["choices"][0]["text"] for seed in (1, 2, 1)
    ]
    assert texts[0] == texts[2] != texts[1] and text not in texts


@pytest.mark.parametrize(
    "change, status, sentence",
    [
        ({"max_tokens": 10**9}, 422, "max_tokens=1000000000 is more than the 40 that this server allows"),
        ({"max_tokens": 0}, 422, "max_tokens: input should be greater than or equal to 1."),
        ({"max_tokens": "5"}, 422, "max_tokens: input should be a valid integer."),
        ({"prompt": "red " * 25, "max_tokens": 30}, 422, "the prompt has 50 tokens, so that 14 are left of the 64"),
        ({"prompt": "red " * 60}, 422, "the prompt has 120 tokens, so that 0 are left of the 64"),
        ({"prompt": []}, 422, "prompt is an empty list"),
        ({"prompt": [[1, 2]]}, 422, "prompt.0: input should be a valid string."),
        ({"n": 2}, 422, "n: input should be 1."),
        ({"logprobs": 3}, 422, "logprobs: input should be None."),
        ({"temperature": -1}, 422, "temperature: input should be greater than or equal to 0."),
        ({"top_p": 0}, 422, "top_p: input should be greater than 0."),
        ({"stop": ""}, 422, "stop holds an empty text"),
        ({"stop": ["a"] * 5}, 422, "stop"),
        ({"model": "gpt-4"}, 404, "there is no such model here, only 'mine'"),
        ({"tools": []}, 422, "tools is not a field that this server knows; leave it out."),
    ],
)
def test_completions_that_cannot_be_are_refused_in_one_sentence(lm, change, status, sentence):
    answer = lm.post("/v1/completions", json={"prompt": "red", "temperature": 0, **change})
    error = answer.json()["error"]
    assert answer.status_code == status and set(error) == {"message", "type", "param", "code"}
    assert error["message"].startswith(sentence) and "\n" not in error["message"]
    bad = lm.post("/v1/completions", content=b'{"prompt": "a", "temperature": NaN}', headers=JSON)
    assert bad.status_code == 422 and "temperature" in bad.json()["error"]["message"]


# Classifiers and encoders --------------------------------------------------------------------------------------------

PREDICTORS = {
    "text-classification": (vt.VanillaTransformerForSequenceClassification, SOURCES[:3], {"top_k": 2}),
    "token-classification": (vt.VanillaTransformerForTokenClassification, SOURCES[:3], {}),
    "fill-mask": (vt.VanillaTransformerForMaskedLM, ["red [MASK] cat", "[MASK] dog"], {"top_k": 3}),
    "question-answering": (
        vt.VanillaTransformerForQuestionAnswering,
        [{"question": "red dog", "context": "green red dog house"}, {"question": "cat", "context": "blue cat sun"}],
        {"top_k": 2},
    ),
    "feature-extraction": (vt.VanillaTransformerModel, SOURCES[:2], {}),
}


def rounded(value):
    """Numbers to as many digits as batches of other sizes leave equal."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return pytest.approx(float(value), rel=1e-4, abs=1e-5) if hasattr(value, "real") else value


@pytest.mark.parametrize("kind", PREDICTORS)
def test_predictions_are_those_of_the_pipeline(kind, tmp_path):
    model_class, inputs, options = PREDICTORS[kind]
    tokenizer = train_wordpiece_tokenizer(TEXTS, 50, **({"mask_token": True} if kind == "fill-mask" else {}))
    if kind == "fill-mask":
        inputs = [text.replace("[MASK]", tokenizer.mask_token) for text in inputs]
    tiny_model("encoder-only", model_class=model_class, vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with serving(tmp_path) as (client, server):
        made = pipeline(kind, model=server.model.model, tokenizer=tokenizer)
        if kind == "feature-extraction":  # a vector for each token
            of_texts, made = made, lambda text, **options: of_texts(text)[0]
        for given in ({}, options):
            expected = [made(each, **given) for each in inputs]
            answer = client.post("/predict", json={"inputs": inputs, **given})
            assert answer.status_code == 200, answer.text
            unwrapped = [each[0] if kind == "text-classification" and not given else each for each in expected]
            assert answer.json() in (rounded(expected), rounded(unwrapped))
            alone = client.post("/predict", json={"inputs": inputs[0], **given}).json()
            assert alone in (rounded(expected[0]), rounded(unwrapped[0]))
        assert client.get("/health").json()["task"] == kind
        for wrong in (5, "", [" "], {"question": "a"}, [{"a": "b"}], "red " * 500):
            answer = client.post("/predict", json={"inputs": wrong})
            assert answer.status_code == 422 and answer.json()["error"].endswith("."), answer.text
        assert client.post("/predict", json={"inputs": []}).json() == []


# The engine ----------------------------------------------------------------------------------------------------------


class Slow:
    """A model that computes until it is let go, and keeps the batches it was given."""

    kind = "slow"

    def __init__(self):
        self.go, self.batches = threading.Event(), []

    def run(self, items, tick):
        self.batches.append([item.payload for item in items])
        self.go.wait(20)
        if any(item.payload == "poison" for item in items):
            raise RuntimeError("poison")
        for item in items:
            item.finish(item.payload)


def wait_until(condition, seconds=10):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come about in time"
        time.sleep(0.005)


def test_batches_hold_the_oldest_item_and_those_of_like_length_and_equal_options():
    model, results = Slow(), {}
    engine = Engine(model, max_batch_tokens=40, max_batch_items=3, max_waiting=8, batch_wait=0)
    engine.start()

    def item(name, size, options=None):
        return Item(name, size, options, lambda result: results.update({name: result}))

    engine.submit([item("first", 5)])
    wait_until(lambda: model.batches)
    waiting = [item("a", 10), item("b", 30), item("c", 11), item("d", 10, "other"), item("e", 13), item("f", 14)]
    engine.submit(waiting)
    gone = item("gone", 10)
    engine.submit([gone])
    gone.cancelled = True
    with pytest.raises(BusyError, match="6 texts wait"):
        engine.submit([item(str(n), 1) for n in range(3)])
    model.go.set()
    wait_until(lambda: len(results) == 7)
    assert model.batches == [["first"], ["a", "c", "e"], ["b"], ["d"], ["f"]]
    engine.stop(1)


def test_an_item_that_fails_fails_alone(caplog):
    model, results, counted = Slow(), {}, []
    engine = Engine(model, on_batch=counted.append)
    model.go.set()
    items = [Item(n, 1, None, lambda result, n=n: results.update({n: result})) for n in ("a", "poison", "b")]
    engine.start()
    engine.submit(items)
    wait_until(lambda: len(results) == 3)
    assert (results["a"], results["b"], str(results["poison"])) == ("a", "b", "poison")
    assert len(model.batches) == 4 and sum(counted) == 3, "an item that is computed again is counted once"
    assert engine.problem() is None
    engine.stop(1)
    assert engine.problem() == "the thread of the model has ended."


def test_a_full_queue_a_slow_model_and_one_that_hangs_are_said():
    model = Slow()
    options = {"max_waiting": 2, "timeout": 0.3, "stall_after": 0.2, "shutdown_seconds": 0.1}
    with serving(model, **options) as (client, server), ThreadPoolExecutor(4) as pool:
        server.model.size = lambda text: 1  # all that a predictor needs
        server.predict = lambda request, body: server.compute(request, [Item(body.inputs, 1, None)])
        answers = [pool.submit(client.post, "/predict", json={"inputs": "a"})]
        wait_until(lambda: model.batches)
        answers += [pool.submit(client.post, "/predict", json={"inputs": text}) for text in "bc"]
        wait_until(lambda: server.engine.waiting == 2)
        full = client.post("/predict", json={"inputs": "d"})
        assert full.status_code == 429 and full.headers["retry-after"] == "1"
        assert full.json() == {"error": "2 texts wait for the model already; try again later."}
        for answer in answers:
            assert answer.result().status_code == 504
            assert answer.result().json() == {"error": "there was no answer within 0.3 seconds; ask for less at once."}
        ill = client.get("/health")
        assert ill.status_code == 503 and "the model has not answered for" in ill.json()["error"]
        model.go.set()
        wait_until(lambda: client.get("/health").status_code == 200)
        assert server.engine.waiting == 0 and model.batches == [["a"]], "what nobody waits for is not computed"


def endless(folder):
    """A language model whose texts never end by themselves, and that may write thousands of tokens."""
    generator = ServedGenerator(TextGenerator.from_pretrained(folder))
    generator.eos_ids, generator.limit = set(), 10**9
    generator.model.generation_config.eos_token_id = None
    return generator


def test_rows_of_clients_that_have_left_do_not_hold_the_others(language_model):
    generator, results, steps = endless(language_model), {}, []
    options = Generation.sampled(0.0, 1.0, None)

    def item(name, tokens, on_text=None):
        passage = Passage(generator.encode("red dog"), tokens, (), on_text)
        return Item(passage, 4, options, lambda result: results.update({name: (result, len(steps))}))

    leaving = item("leaving", 5000, lambda text: setattr(leaving, "cancelled", len(steps) >= 8))
    generator.run([leaving, item("short", 3), item("longer", 20)], lambda: steps.append(1))
    assert set(results) == {"short", "longer"} and len(steps) == 20
    (short, at), (longer, _) = results["short"], results["longer"]
    assert (short.tokens, at, longer.tokens) == (3, 3, 20) and longer.texts[0].startswith(short.texts[0])
    assert isinstance(short, Output) and short.finish_reason == longer.finish_reason == "length"


def test_a_request_whose_client_leaves_is_given_up(language_model):
    """Called as a server calls the application, so that it can be told that the client has gone."""

    async def leave(app, path, body):
        asked, sent = [{"type": "http.request", "body": json.dumps(body).encode()}], []

        async def receive():
            if asked:
                return asked.pop()
            while not (len(sent) > 2 if body.get("stream") else server.engine._running):
                await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
        scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": "POST",
                 "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers, "scheme": "http"}  # fmt: skip
        await app(scope, receive, send)
        return sent

    with serving(endless(language_model), max_new_tokens=10**6) as (client, server):
        body = {"prompt": "red dog", "max_tokens": 10**6, "temperature": 0}
        for stream in (False, True):
            sent = asyncio.run(leave(client.app, "/v1/completions", {**body, "stream": stream}))
            assert sent[0]["status"] == (200 if stream else 499)
            wait_until(lambda: not server.engine._running)
        answer = client.post("/v1/completions", json={**body, "max_tokens": 3})
        assert answer.json()["usage"]["completion_tokens"] == 3 and client.get("/health").status_code == 200


# The process ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert (end.value.code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1, err
        return err

    return run


def test_the_server_starts_refuses_a_taken_port_and_stops_when_asked(folder, refused, tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-m", "vanilla_transformer.cli", "serve", folder, "--port", "0", "--device", "cpu"]
    with log.open("w") as stream:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen([*map(str, command), "--host", "localhost"], stderr=stream, env=environment)
    try:
        wait_until(lambda: "answers at" in log.read_text() or process.poll() is not None, 120)
        port = int(log.read_text().partition("http://127.0.0.1:")[2].partition(";")[0])
        assert f"port {port} of 127.0.0.1 (address already in use)" in refused("serve", folder, "--port", port)

        def post(body):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("POST", "/translate", json.dumps(body), JSON)
            return connection

        (best,) = next(TextGenerator.from_pretrained(folder).generate([SOURCES[0]]))
        assert json.load(post({"q": SOURCES[0]}).getresponse()) == {"translatedText": best.text}
        too_large = post({"q": "a" * 20_000_000}).getresponse()
        assert too_large.status == 413 and b"more than the 1,048,576 bytes" in too_large.read()
        post({"q": SOURCES * 5}).close()  # a client that leaves
        _, seconds, failed = load_script("benchmark_server").ask_at_once(port, SOURCES * 2, 4)
        assert len(seconds) == 2 * len(SOURCES) and failed == []
        with socket.create_connection(("127.0.0.1", port)) as half:  # one that never ends its request
            half.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            assert json.load(post({"q": SOURCES[0]}).getresponse()) == {"translatedText": best.text}
            started = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0 and time.monotonic() - started < 15
    finally:
        process.kill()
        process.wait()
    lines = log.read_text().splitlines()
    assert len(lines) == 2 and lines[-1] == "stopped", lines


def test_a_server_that_cannot_start_says_why(refused, folder, monkeypatch, tmp_path):
    assert "--host 'no such host' is not an address" in refused("serve", folder, "--host", "no such host")
    assert "cannot listen to port" in refused("serve", folder, "--host", "203.0.113.7", "--port", 0)
    assert "there is no backend 'tensorflow'; there is torch, ctranslate2." in refused(
        "serve", folder, "--backend", "tensorflow", "--port", 0
    )
    assert "gone" in refused("serve", tmp_path / "gone", "--port", 0)
    for name in [name for name in sys.modules if name.startswith("vanilla_transformer.serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "the server needs uvicorn, which is not installed; `pip install uvicorn`, or in" in refused("serve", folder)


def test_seeds_leave_the_random_numbers_of_others_alone(language_model):
    generator = ServedGenerator(TextGenerator.from_pretrained(language_model))
    state = torch.get_rng_state()
    results = []
    for _ in range(2):
        passage = Passage(generator.encode("red dog"), 12)
        generator.run([Item(passage, 4, Generation.sampled(1.5, 1.0, 3), results.append)], lambda: None)
    assert torch.equal(torch.get_rng_state(), state) and results[0] == results[1]
