"""Models written in another form that computes the same, and what transformers' classes can hold because of it."""

import pytest
import torch
from transformers import GPT2LMHeadModel, MarianMTModel, PegasusForConditionalGeneration

from closeness import EXACT, assert_close
from tiny import model_inputs, randomise, tiny_model
from vanilla_transformer import cli
from vanilla_transformer.conversion import ConversionError, to_transformers
from vanilla_transformer.conversion.parity import measure_parity
from vanilla_transformer.conversion.rewriting import REWRITINGS, rewrite_field

TRANSLATOR, WRITER, ENCODER = "encoder-decoder", "decoder-only", "encoder-only"

# what is rewritten: architecture, fields, the field that changes, its new value
FORMS = [
    (TRANSLATOR, {}, "sinusoidal_form", "concatenated"),
    (TRANSLATOR, {"norm_position": "pre", "gated_feed_forward": True}, "sinusoidal_form", "concatenated"),
    (TRANSLATOR, {"embedding_size": 8, "tie_word_embeddings": False}, "sinusoidal_form", "concatenated"),
    (WRITER, {"norm_type": "rmsnorm"}, "sinusoidal_form", "concatenated"),
    (ENCODER, {"embedding_norm": True, "type_vocab_size": 2}, "sinusoidal_form", "concatenated"),
    (TRANSLATOR, {"attention_bias": False}, "attention_bias", True),
    (TRANSLATOR, {"attention_output_bias": False}, "attention_output_bias", True),
    (WRITER, {"mlp_bias": False}, "mlp_bias", True),
    (WRITER, {"norm_bias": False}, "norm_bias", True),
    (TRANSLATOR, {}, "output_bias", "fixed"),
    (TRANSLATOR, {"num_key_value_heads": 1}, "num_key_value_heads", 4),
    (WRITER, {"sinusoidal_form": "fairseq", "position_offset": 2}, "position_encoding", "learned"),
    (TRANSLATOR, {"target_vocab_size": 43}, "scale_embedding", False),
    (WRITER, {}, "scale_embedding", False),
]


@pytest.mark.parametrize(("architecture", "fields", "field", "value"), FORMS)
def test_a_model_in_another_form_gives_the_same_logits(architecture, fields, field, value):
    model = randomise(tiny_model(architecture, **fields), scale=0.2).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rewritten = rewrite_field(model, field, value)
    assert getattr(rewritten.config, field) == value != getattr(model.config, field)
    inputs = model_inputs(model)
    with torch.no_grad():
        assert_close(rewritten(**inputs).logits, model(**inputs).logits)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_every_rewriting_that_is_exact_is_tested():
    assert {field for *_, field, _ in FORMS} == set(REWRITINGS) - {"norm_eps"}


def test_what_is_no_rewriting_is_not_done():
    model = tiny_model(TRANSLATOR)
    for field, value in (("norm_position", "pre"), ("sinusoidal_form", "fairseq"), ("norm_eps", 1e-2)):
        assert rewrite_field(model, field, value) is None


@pytest.mark.parametrize(
    ("architecture", "fields", "family", "theirs"),
    [
        (TRANSLATOR, {}, None, MarianMTModel),
        (TRANSLATOR, {"attention_bias": False, "norm_bias": False}, "marian", MarianMTModel),
        (TRANSLATOR, {"target_vocab_size": 43, "num_key_value_heads": 2}, None, MarianMTModel),
        (TRANSLATOR, {"norm_position": "pre", "mlp_bias": False}, None, PegasusForConditionalGeneration),
        (WRITER, {"norm_position": "pre", "norm_eps": 1e-5}, None, GPT2LMHeadModel),
    ],
)
def test_the_form_of_the_paper_becomes_a_class_of_transformers(architecture, fields, family, theirs):
    """Logits within 1e-4 and the same tokens, also where the class fixes another eps of its norms."""
    lines = []
    model = randomise(tiny_model(architecture, **fields), scale=0.2).eval()
    converted = to_transformers(model, family, log=lines.append)
    assert type(converted) is theirs
    measured = measure_parity(converted, model)
    assert measured.holds() and all(measured.generated.values()), str(measured)
    changed = {line.partition("=")[0] for line in lines if "is written as" in line}
    assert "sinusoidal_form" in changed or "position_encoding" in changed
    assert ("norm_eps" in changed) == (model.config.norm_eps != 1e-5)
    assert all("changes outputs a little" in line for line in lines if line.startswith("norm_eps"))


def test_another_eps_is_measured_in_proportion_to_the_logits():
    """A model that is sure of itself has large logits, which the same relative change moves further."""
    model = randomise(tiny_model(), scale=0.2).eval()
    with torch.no_grad():
        model.lm_head.weight *= 1000
    batch = {"input_ids": torch.tensor([[3, 4, 5]]), "decoder_input_ids": torch.tensor([[1, 7]])}
    converted = to_transformers(model, "marian", log=lambda line: None)
    with torch.no_grad():
        one, other = converted(**batch).logits, model(**batch).logits
    assert (one - other).abs().max() > 1e-4
    assert measure_parity(converted, model).holds()


def test_a_model_that_a_class_holds_as_it_is_stays_bit_by_bit():
    lines = []
    model = tiny_model(sinusoidal_form="concatenated", output_bias="fixed", norm_eps=1e-5)
    converted = to_transformers(model, log=lines.append)
    assert not any("written as" in line for line in lines)
    assert_close(
        converted.model.encoder.embed_tokens.weight, model.model.encoder.embed_tokens.weight.detach(), atol=EXACT
    )


def test_what_no_form_holds_is_still_refused_by_field():
    with pytest.raises(ConversionError, match="^marian cannot hold this model; in the way is .*norm_position='pre'"):
        to_transformers(tiny_model(norm_position="pre"), "marian")


def test_the_command_converts_the_form_of_the_paper(tmp_path, capsys):
    randomise(tiny_model(), scale=0.2).save_pretrained(tmp_path / "ours")
    with pytest.raises(SystemExit) as end:
        cli.main(["convert", str(tmp_path / "ours"), str(tmp_path / "theirs"), "--to-transformers"])
    said = capsys.readouterr().err
    assert end.value.code == 0
    assert "sinusoidal_form='interleaved' is written as 'concatenated' for marian." in said
    assert "checked: largest difference of logits" in said and "MarianMTModel saved in" in said
