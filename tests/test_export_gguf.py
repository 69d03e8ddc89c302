"""Language models in GGUF files: the same logits in transformers' reader, the same tokens from text in llama.cpp itself."""

import json
import urllib.request

import pytest
import torch
import xllamacpp

from tiny import randomise, tiny_model
from vanilla_transformer import cli
from vanilla_transformer.export import ExportError, to_gguf
from vanilla_transformer.export.gguf_model import FILE_NAME
from vanilla_transformer.generation.text_generator import encode_input
from vanilla_transformer.tokenization import train_character_tokenizer, train_tokenizer

TEXTS = [f"{n} red cats and {n * n} old dogs" for n in range(60)]

LLAMA = {
    "norm_position": "pre",
    "norm_type": "rmsnorm",
    "gated_feed_forward": True,
    "hidden_act": "silu",
    "position_encoding": "rope",
    "attention_bias": False,
    "mlp_bias": False,
}
GPT2 = {"norm_position": "pre", "hidden_act": "gelu_new"}

FORMS = {
    "llama": LLAMA,
    "llama-grouped-wide-heads": {**LLAMA, "num_key_value_heads": 2, "head_dim": 6},
    "llama-untied-unscaled": {**LLAMA, "tie_word_embeddings": False, "scale_embedding": False, "rope_theta": 500.0},
    "gpt2-sinusoids": GPT2,
    "gpt2-learned": {**GPT2, "position_encoding": "learned", "scale_embedding": False},
    "gpt2-without-biases": {**GPT2, "attention_bias": False, "norm_bias": False, "num_key_value_heads": 2},
}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 277)


def language_model(**fields):
    return randomise(tiny_model("decoder-only", vocab_size=280, **fields)).eval()


@pytest.mark.parametrize("form", FORMS)
def test_llamas_and_gpt2s_are_read_with_the_same_scores_and_tokens(tmp_path, tokenizer, form):
    parity = to_gguf(language_model(**FORMS[form]), tokenizer, tmp_path / "model", texts=TEXTS[:4])
    assert parity.difference <= 1e-5 and parity.same == parity.texts == 32
    assert {path.name for path in (tmp_path / "model").iterdir()} >= {FILE_NAME, "tokenizer.json"}


@pytest.mark.parametrize(("form", "split_digits"), [("llama-grouped-wide-heads", True), ("gpt2-sinusoids", False)])
def test_llama_cpp_continues_texts_as_generate_does(tmp_path, form, split_digits):
    """From strings, so that the tokenizer in the file is that of the model."""
    model, tokenizer = language_model(**FORMS[form]), train_tokenizer(TEXTS, 277, split_digits=split_digits)
    to_gguf(model, tokenizer, tmp_path / "model")
    options = xllamacpp.CommonParams()
    options.model.path = str(tmp_path / "model" / FILE_NAME)
    options.n_ctx, options.n_parallel, options.cpuparams.n_threads, options.warmup = 64, 1, 1, False
    options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(options)
    for text in [*TEXTS[:6], "Grüße,  it's 1234 \n\n 猫!"]:
        ids = encode_input(tokenizer, text, is_prompt=True)
        answer = ask(server, "/completion", prompt=text, n_predict=12, temperature=0, return_tokens=True)
        assert ask(server, "/tokenize", content=text)["tokens"] == ids
        written = model.generate(torch.tensor([ids]), max_new_tokens=12, num_beams=1, do_sample=False)[0, len(ids) :]
        assert answer["tokens"] == [token for token in written.tolist() if token != tokenizer.eos_token_id], text


def ask(server, path, **body):
    request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_weights_can_be_quantized(tmp_path, tokenizer):
    model = tiny_model("decoder-only", vocab_size=280, **LLAMA, hidden_size=64, intermediate_size=96)
    sizes = {}
    for quantization in ("float32", "bfloat16", "int8"):
        parity = to_gguf(model, tokenizer, tmp_path / quantization, quantization)
        assert parity.difference < 0.2
        sizes[quantization] = (tmp_path / quantization / FILE_NAME).stat().st_size
    assert sizes["int8"] < sizes["bfloat16"] < 0.6 * sizes["float32"]


def test_the_command_writes_it(tmp_path, tokenizer, capsys):
    language_model(**LLAMA).save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.main(["export", str(tmp_path / "run"), str(tmp_path / "gguf"), "--to", "gguf"])
    assert end.value.code == 0 and capsys.readouterr().err.startswith("checked: GGUF, float32: largest difference")


@pytest.mark.parametrize(
    ("architecture", "fields", "said"),
    [
        (
            "encoder-decoder",
            {},
            "GGUF holds language models that continue text .architecture='decoder-only'.; Vanilla",
        ),
        ("encoder-only", {}, "GGUF holds language models that continue text"),
        ("decoder-only", {**GPT2, "hidden_act": "relu"}, "in the way is hidden_act='relu', as llama.cpp's GPT-2 has"),
        ("decoder-only", {**LLAMA, "mlp_bias": True}, "in the way is mlp_bias=True, which the llama of"),
        (
            "decoder-only",
            {**LLAMA, "qk_norm": "rmsnorm"},
            "in the way is qk_norm='rmsnorm', which the llama of llama.cpp",
        ),
        (
            "decoder-only",
            {**LLAMA, "value_head_dim": 6, "head_dim": 8, "partial_rotary_factor": 0.5},
            "in the way is value_head_dim=6, partial_rotary_factor=0.5, which",
        ),
        ("decoder-only", {**LLAMA, "sliding_window": 3}, "llama cannot hold .* in the way is .*sliding_window=3"),
        ("decoder-only", {"hidden_act": "gelu_new"}, "gpt2 cannot hold .* in the way is .*norm_position='post'"),
    ],
)
def test_what_it_cannot_hold_is_refused_by_field_and_leaves_nothing(tmp_path, tokenizer, architecture, fields, said):
    with pytest.raises(ExportError, match=said):
        to_gguf(tiny_model(architecture, vocab_size=280, **fields), tokenizer, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_tokenizers_of_other_kinds_are_refused(tmp_path):
    for tokenizer in (train_character_tokenizer(TEXTS), train_tokenizer(TEXTS, 277, lowercase=True)):
        with pytest.raises(ExportError, match="^GGUF cannot hold this tokenizer: it takes byte-level BPE"):
            to_gguf(language_model(**LLAMA), tokenizer, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
