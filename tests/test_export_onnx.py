"""Models in ONNX files: the same logits and tokens in onnxruntime, in the layout that transformers.js and Optimum read."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import vanilla_transformer as vt
from runs import load_script, reversed_words, save_translator
from tiny import randomise, tiny_model
from vanilla_transformer.export import ExportError, onnx_model, to_onnx
from vanilla_transformer.export.onnx_merge import CONDITION
from vanilla_transformer.tokenization import train_tokenizer

TEXTS = [f"{n} red cats and {n * n} old dogs" for n in range(60)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 280)


@pytest.fixture(scope="module", autouse=True)
def traced_once():
    """Each graph of a model is traced once in this module; tracing is what takes time."""
    known, trace = {}, onnx_model.trace

    def remembered(graph):
        key = id(graph.module.model), type(graph.module)
        if key not in known:
            known[key] = graph, trace(graph)
        copy = onnx.ModelProto()
        copy.CopyFrom(known[key][1])
        return copy

    onnx_model.trace = remembered
    yield
    onnx_model.trace = trace


@pytest.fixture(scope="module")
def translator(tmp_path_factory, tokenizer):
    """A model with grouped keys, separate depths and the paper's norms, and its folder."""
    model = randomise(tiny_model(vocab_size=280, num_key_value_heads=2, num_hidden_layers=1, decoder_layers=2)).eval()
    folder = tmp_path_factory.mktemp("onnx") / "model"
    return model, folder, to_onnx(model, tokenizer, folder, texts=TEXTS[:4])


def test_a_translator_gives_the_same_logits_and_tokens(translator):
    """`to_onnx` itself compares rows of seven lengths, padded together, and raises where they differ."""
    _, folder, parity = translator
    assert parity.difference <= 1e-4 and parity.same == parity.texts == 32
    assert {path.name for path in (folder / "onnx").iterdir()} == {"encoder_model.onnx", "decoder_model_merged.onnx"}
    assert (folder / "tokenizer.json").is_file() and (folder / "generation_config.json").is_file()


def test_the_layout_is_that_of_a_known_model_type(translator):
    model, folder, _ = translator
    config = json.loads((folder / "config.json").read_text())
    heads, width = config["decoder_attention_heads"], config["d_model"] // config["decoder_attention_heads"]
    assert (config["model_type"], heads, width) == ("marian", 2, model.config.head_dim)
    decoder = onnxruntime.InferenceSession(folder / "onnx" / "decoder_model_merged.onnx")
    inputs = {value.name: value.shape for value in decoder.get_inputs()}
    past = [f"{i}.{side}.{kind}" for i in range(2) for side in ("decoder", "encoder") for kind in ("key", "value")]
    assert inputs.keys() == {
        *("input_ids", "encoder_attention_mask", "encoder_hidden_states", CONDITION),
        *(f"past_key_values.{name}" for name in past),
    }
    assert [output.name for output in decoder.get_outputs()] == ["logits", *(f"present.{name}" for name in past)]
    weights = onnx.load(folder / "onnx" / "decoder_model_merged.onnx").graph.initializer
    stored = sum(np.prod(tensor.dims) for tensor in weights)
    # the tied matrix stands there as an embedding and, transposed, as a projection
    held = sum(p.numel() for p in model.model.decoder.parameters()) + model.lm_head.weight.numel()
    assert stored < 1.05 * held, "both branches read the same weights"


def test_ten_shapes_with_and_without_a_cache_are_those_of_torch(translator):
    model, folder, _ = translator
    encoder = onnxruntime.InferenceSession(folder / "onnx" / "encoder_model.onnx")
    for number in range(10):
        generator = torch.Generator().manual_seed(number)
        batch, source = 1 + number % 4, 2 + 3 * number
        ids = torch.randint(3, 280, (batch, source), generator=generator)
        mask = torch.ones_like(ids)
        mask[0, source // 2 + 1 :] = 0
        states = encoder.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})[0]
        with torch.no_grad():
            expected = model.model.encoder(ids, mask).last_hidden_state
        assert abs(states - expected.numpy())[mask.bool().numpy()].max() <= 1e-4, (batch, source)


@pytest.mark.parametrize("quantization", ["float16", "int8"])
def test_smaller_weights_have_files_of_their_own_names(tmp_path, tokenizer, translator, quantization):
    model, float32, _ = translator
    parity = to_onnx(model, tokenizer, tmp_path / "model", quantization)
    suffix = {"float16": "_fp16", "int8": "_quantized"}[quantization]
    for name in ("encoder_model", "decoder_model_merged"):
        small = (tmp_path / "model" / "onnx" / f"{name}{suffix}.onnx").stat().st_size
        assert small < (float32 / "onnx" / f"{name}.onnx").stat().st_size
    assert parity.difference < 0.2 and parity.texts == 28


def test_a_language_model_continues_with_its_cache(tmp_path, tokenizer):
    fields = {"position_encoding": "rope", "num_key_value_heads": 1, "head_dim": 6, "num_hidden_layers": 1}
    model = randomise(tiny_model("decoder-only", vocab_size=280, **fields)).eval()
    parity = to_onnx(model, tokenizer, tmp_path / "model")
    assert parity.difference <= 1e-4 and parity.same == parity.texts == 28
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == "llama"


@pytest.mark.parametrize("head", ["MaskedLM", "QuestionAnswering"])
def test_encoders_go_with_their_heads(tmp_path, tokenizer, head):
    model_class = getattr(vt, f"VanillaTransformerFor{head}")
    model = randomise(
        tiny_model("encoder-only", vocab_size=280, model_class=model_class, type_vocab_size=2, num_hidden_layers=1)
    ).eval()
    parity = to_onnx(model, tokenizer, tmp_path / "model")
    assert parity.difference <= 1e-4 and parity.texts == 0
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["architectures"] == [f"BertFor{head}"]


def test_what_cannot_be_is_refused_and_leaves_nothing(tmp_path, tokenizer):
    with pytest.raises(ExportError, match="^quantization='int4' is not one of float32, float16, int8"):
        to_onnx(tiny_model(vocab_size=280), tokenizer, tmp_path / "model", "int4")
    model_class = vt.VanillaTransformerForSequenceClassification
    model = tiny_model("decoder-only", vocab_size=280, model_class=model_class)
    with pytest.raises(ExportError, match="ForSequenceClassification with architecture='decoder-only' has no place"):
        to_onnx(model, tokenizer, tmp_path / "model")
    with pytest.raises(ExportError, match="^ONNX files cannot hold value_head_dim=6, as their caches have"):
        to_onnx(tiny_model(vocab_size=280, value_head_dim=6), tokenizer, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_runtimes_are_compared_in_one_table(tmp_path, capsys):
    """Random weights: BLEU is 0, and the runtimes write the same in float32, whole batches at once."""
    save_translator(tmp_path / "run")
    for name, side in (("source", 0), ("target", 1)):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in reversed_words(20, 5)))
    arguments = [str(tmp_path / "run"), "--source", str(tmp_path / "source"), "--target", str(tmp_path / "target")]
    assert load_script("compare_runtimes").main(arguments) == 0
    said = capsys.readouterr().out
    assert all(said.count(name) >= 2 for name in ("torch", "CTranslate2", "onnxruntime"))
    assert said.count("100.0 %") >= 3 and ", line " not in said
