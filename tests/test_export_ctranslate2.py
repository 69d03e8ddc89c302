"""Models in CTranslate2: the same scores and tokens as ours, from strings, and what it cannot hold."""

import random

import ctranslate2
import pytest
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

import vanilla_transformer as vt
from choices import CHOICES, fields_of, is_possible
from tiny import LANGUAGE_MODELS, randomise, tiny_model
from vanilla_transformer import cli
from vanilla_transformer.export import ExportError, export_folder, to_ctranslate2
from vanilla_transformer.export.ctranslate2_model import ACTIVATIONS
from vanilla_transformer.tokenization import train_tokenizer

TEXTS = [f"{n} red cats and {n * n} old dogs" for n in range(60)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 280)


def combinations(count, seed=0):
    """Random combinations of choices, without those that CTranslate2 has no place for."""
    draw = random.Random(seed)
    unheld = {"window", "output", "final_norm"}
    more_unheld = ("rotary_scaling", "value_head_dim")
    found = []
    while len(found) < count:
        options = [0 if name in unheld else draw.randrange(len(of)) for name, of in CHOICES.items()]
        fields = fields_of(options)
        paired = fields["architecture"] != "decoder-only"
        held = "embedding_size" not in fields and not (fields["position_encoding"] == "alibi" and paired)
        held = held and not (fields.get("type_vocab_size") and fields["architecture"] != "encoder-only")
        held = held and not any(name in fields for name in more_unheld)
        norm = fields.get("qk_norm")
        held = held and not (norm == "layernorm" or (norm and fields["architecture"] == "encoder-decoder"))
        if held and is_possible(fields):
            found.append(fields)
    return found


def test_every_choice_that_it_has_gives_the_same_scores_and_tokens(tmp_path, tokenizer):
    """`to_ctranslate2` itself compares scores (within 1e-4) and greedy tokens, and raises where they differ."""
    for number, fields in enumerate(combinations(16)):
        config = vt.VanillaTransformerConfig(
            **{**fields, "vocab_size": 280, **({"target_vocab_size": 281} if fields.get("target_vocab_size") else {})}
        )
        torch.manual_seed(number)
        model = randomise(LANGUAGE_MODELS[config.architecture](config)).eval()
        parity = to_ctranslate2(model, tokenizer, tmp_path / f"model-{number}")
        assert parity.difference <= 1e-4, fields
        assert parity.same + parity.ties == parity.texts == (0 if config.architecture == "encoder-only" else 28)


def test_a_folder_translates_strings_with_its_own_tokenizer(tmp_path, tokenizer, capsys):
    model = randomise(tiny_model(vocab_size=280)).eval()
    model.save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    lines = []
    export_folder(tmp_path / "run", tmp_path / "ct2", "ctranslate2", texts=TEXTS[:10], log=lines.append)
    assert "greedy: 38 of 38 texts the same tokens" in lines[0]
    own = AutoTokenizer.from_pretrained(tmp_path / "ct2")
    translator = ctranslate2.Translator(str(tmp_path / "ct2"))
    found = translator.translate_batch(
        [own.convert_ids_to_tokens(own(text).input_ids) for text in TEXTS[:5]], beam_size=1, max_decoding_length=12
    )
    texts = [own.decode(own.convert_tokens_to_ids(result.hypotheses[0])) for result in found]
    inputs = tokenizer(TEXTS[:5], return_tensors="pt", padding=True)
    expected = model.generate(**inputs, num_beams=1, max_new_tokens=12)
    assert texts == tokenizer.batch_decode(expected, skip_special_tokens=True)
    assert "ctranslate2.Translator" in (tmp_path / "ct2" / "README.md").read_text()


def test_the_command_compares_on_a_file_of_texts(tmp_path, tokenizer, capsys):
    tiny_model(vocab_size=280).save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    (tmp_path / "texts").write_text("7 red cats\n\n9 old dogs\n")
    capsys.readouterr()
    arguments = ["export", str(tmp_path / "run"), str(tmp_path / "int8"), "--to", "ctranslate2"]
    with pytest.raises(SystemExit) as end:
        cli.main([*arguments, "--quantization", "int8", "--check", str(tmp_path / "texts")])
    said = capsys.readouterr().err.splitlines()
    assert end.value.code == 0 and len(said) == 2
    assert said[0].startswith("checked: CTranslate2, int8: largest difference of scores ") and "of 30 texts" in said[0]
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2 and "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize("quantization", ["int8", "int8_bfloat16", "float16"])
def test_weights_can_be_quantized(tmp_path, tokenizer, quantization):
    model = randomise(tiny_model("decoder-only", vocab_size=280, position_encoding="rope")).eval()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sizes = {}
    for kind in ("float32", quantization):
        to_ctranslate2(model, tokenizer, tmp_path / kind, kind)
        sizes[kind] = (tmp_path / kind / "model.bin").stat().st_size
    assert sizes[quantization] < 0.75 * sizes["float32"]
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items()), "the model stays"


def test_a_part_of_a_head_is_turned(tmp_path, tokenizer):
    fields = {"position_encoding": "rope", "head_dim": 8, "partial_rotary_factor": 0.5, "qk_norm": "rmsnorm"}
    model = randomise(tiny_model("decoder-only", vocab_size=280, **fields)).eval()
    parity = to_ctranslate2(model, tokenizer, tmp_path / "model")
    assert parity.difference <= 1e-4 and parity.same == parity.texts == 28


def test_a_model_in_training_or_half_precision_is_exported_and_stays_as_it_is(tmp_path, tokenizer):
    model = tiny_model(vocab_size=280, dropout=0.5).to(torch.bfloat16).train()
    parity = to_ctranslate2(model, tokenizer, tmp_path / "model", texts=["7 </s> cats"])
    assert parity.same + parity.ties == parity.texts == 29
    assert model.training and model.dtype == torch.bfloat16


def test_a_text_beyond_the_positions_is_named_before_anything_is_written(tmp_path, tokenizer):
    model = tiny_model(vocab_size=280, position_encoding="learned")
    with pytest.raises(
        ExportError, match="^line 2 of the texts has [0-9]+ tokens, more than the model's 64 positions"
    ):
        to_ctranslate2(model, tokenizer, tmp_path / "model", texts=["7 cats", "x" * 99])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_the_same_functions(tmp_path, tokenizer, activation):
    model = randomise(tiny_model("encoder-only", vocab_size=280, hidden_act=activation), scale=0.5).eval()
    assert to_ctranslate2(model, tokenizer, tmp_path / "model").difference <= 1e-5


@pytest.mark.parametrize(
    ("architecture", "fields", "named"),
    [
        ("encoder-decoder", {"sliding_window": 3}, "sliding_window=3"),
        ("encoder-decoder", {"position_encoding": "alibi"}, "position_encoding='alibi'"),
        ("encoder-decoder", {"final_norm": True}, "final_norm=True"),
        ("decoder-only", {"embedding_size": 8, "tie_word_embeddings": False}, "embedding_size=8"),
        ("decoder-only", {"output_transform": True}, "output_transform=True"),
        ("decoder-only", {"type_vocab_size": 2}, "type_vocab_size=2"),
        ("encoder-only", {"hidden_act": "mish"}, "hidden_act='mish'"),
        ("encoder-decoder", {"qk_norm": "rmsnorm"}, "qk_norm='rmsnorm'"),
        ("decoder-only", {"qk_norm": "layernorm"}, "qk_norm='layernorm'"),
        ("decoder-only", {"value_head_dim": 6}, "value_head_dim=6"),
        (
            "decoder-only",
            {"position_encoding": "rope", "rotary_scaling": {"rope_type": "linear", "factor": 2.0}},
            "rotary_scaling=",
        ),
    ],
)
def test_what_it_cannot_hold_is_refused_by_field_and_leaves_nothing(tmp_path, tokenizer, architecture, fields, named):
    model = tiny_model(architecture, vocab_size=280, **fields)
    with pytest.raises(ExportError, match="^CTranslate2 cannot hold this model; in the way is ") as error:
        to_ctranslate2(model, tokenizer, tmp_path / "model")
    assert named in str(error.value) and list(tmp_path.iterdir()) == []


def test_an_export_that_computes_something_else_leaves_nothing(tmp_path, tokenizer, monkeypatch):
    from vanilla_transformer.export import ctranslate2_model

    monkeypatch.setitem(ctranslate2_model.ACTIVATIONS, "relu", "GELU")
    with pytest.raises(ExportError, match="^the exported model does not compute the same as the model"):
        to_ctranslate2(tiny_model(vocab_size=280), tokenizer, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_arguments_that_cannot_be_are_one_sentence(tmp_path, tokenizer):
    model = tiny_model(vocab_size=280)
    with pytest.raises(ExportError, match="^quantization='int4' is not one of float32, "):
        to_ctranslate2(model, tokenizer, tmp_path / "model", "int4")
    with pytest.raises(ExportError, match="^the tokenizer has 280 tokens and the model 100; "):
        to_ctranslate2(tiny_model(vocab_size=100), tokenizer, tmp_path / "model")
    with pytest.raises(ExportError, match="^--to tensorrt is unknown; it is "):
        export_folder(tmp_path, tmp_path / "model", "tensorrt")
    assert list(tmp_path.iterdir()) == []


def test_models_of_other_kinds_are_refused_with_the_way_to_them(tmp_path, tokenizer, capsys):
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=280)).save_pretrained(tmp_path / "gpt")
    tiny_model(vocab_size=280).save_pretrained(tmp_path / "bare")
    for name, said in (
        ("gpt", "gpt is a model of the family 'gpt2', not one of this package; `vanilla-transformer convert"),
        ("bare", "bare holds no tokenizer; save it there"),
    ):
        with pytest.raises(SystemExit) as end:
            cli.main(["export", str(tmp_path / name), str(tmp_path / "model"), "--to", "onnx"])
        assert end.value.code == 2 and said in capsys.readouterr().err
        assert not (tmp_path / "model").exists()
