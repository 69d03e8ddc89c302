import copy
import hashlib
import json
import pickle
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForSeq2SeqLM
from transformers.utils import logging

from tiny import GRID, LANGUAGE_MODELS, model_inputs, tiny_config, tiny_model
from vanilla_transformer import VanillaTransformerConfig

ALIASES = {"d_model": "hidden_size", "d_ff": "intermediate_size", "encoder_layers": "num_hidden_layers"}


def count_parameters(config):
    with torch.device("meta"):
        model = LANGUAGE_MODELS[config.architecture](config)
    return sum(parameter.numel() for parameter in model.parameters())


# ------------------------------------------------------------------------------------------------------- the default


def test_default_is_the_base_model_of_the_paper():
    config = VanillaTransformerConfig()
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (512, 2048, 6)
    assert (config.num_decoder_layers, config.num_attention_heads, config.head_dim) == (6, 8, 64)
    assert (config.norm_position, config.norm_type, config.hidden_act) == ("post", "layernorm", "relu")
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.1, 0.0, 0.0)
    assert config.scale_embedding and config.tie_word_embeddings and config.is_encoder_decoder


def test_parameters_of_the_paper():
    assert VanillaTransformerConfig().num_parameters() == 63_082_496 == count_parameters(VanillaTransformerConfig())


@pytest.mark.parametrize(("architecture", "variant"), GRID)
def test_parameter_formula(architecture, variant):
    config = tiny_config(architecture, variant)
    assert config.num_parameters() == count_parameters(config)


# ------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(("alias", "canonical"), ALIASES.items())
def test_alias_is_accepted_read_and_written(alias, canonical):
    config = VanillaTransformerConfig(**{alias: 64})
    assert getattr(config, canonical) == getattr(config, alias) == 64
    setattr(config, alias, 96)
    assert getattr(config, canonical) == 96
    assert getattr(VanillaTransformerConfig(**{alias: 64, canonical: 64}), canonical) == 64


@pytest.mark.parametrize(("alias", "canonical"), ALIASES.items())
def test_two_names_with_different_values_are_refused(alias, canonical):
    for given in ({alias: 64, canonical: 128}, {canonical: 128, alias: 64}):
        with pytest.raises(ValueError, match=f"(?=.*{alias}=64)(?=.*{canonical}=128)"):
            VanillaTransformerConfig(**given)


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("hiden_size", "hidden_size"), ("attention_heads", "num_attention_heads"), ("d_modell", "d_model")],
)
def test_unknown_field_is_refused_and_the_nearest_named(given, nearest):
    with pytest.raises(ValueError, match=f"unknown field {given!r}; did you mean {nearest!r}"):
        VanillaTransformerConfig(**{given: 64})
    with pytest.raises(ValueError, match=f"unknown field {given!r}"):
        VanillaTransformerConfig.from_preset("transformer-tiny", **{given: 64})


def test_unknown_field_in_a_file_is_refused(tmp_path):
    VanillaTransformerConfig().save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**written, "norm_positon": "pre"}))
    with pytest.raises(ValueError, match="unknown field 'norm_positon'; did you mean 'norm_position'"):
        AutoConfig.from_pretrained(tmp_path)


def with_another_field(folder, value):
    """The code in a folder, changed by one more field, and a configuration with it."""
    file = folder / "configuration_vanilla_transformer.py"
    code = file.read_text()
    changed = code.replace(
        "    use_cache: bool = True\n", "    use_cache: bool = True\n    residual_scale: float = 1.0\n"
    )
    assert changed != code
    file.write_text(changed)
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**written, "residual_scale": value}))


def test_a_model_of_newer_code_is_read_by_its_own_code_where_that_is_trusted(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    with_another_field(tmp_path, 0.5)
    for load in (AutoConfig.from_pretrained, AutoModelForSeq2SeqLM.from_pretrained, type(model).from_pretrained):
        with pytest.raises(ValueError, match="'residual_scale'.* saved by newer or other code: update") as refused:
            load(tmp_path)
        assert len(str(refused.value)) < 400
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, trust_remote_code=True).eval()
    assert type(loaded).__module__.startswith("transformers_modules.") and loaded.config.residual_scale == 0.5
    inputs = model_inputs(model)
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)

    # a field at its default is not in the file, so that versions without it read it
    loaded.config.residual_scale = 1.0
    loaded.save_pretrained(tmp_path / "default")
    assert "residual_scale" not in json.loads((tmp_path / "default" / "config.json").read_text())
    for options in ({}, {"trust_remote_code": True}):
        again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "default", **options)
        assert type(again) is type(model)


FIRST = json.loads((Path(__file__).parent / "first_version.json").read_text())
"""What the first version wrote and built: the configuration of the tiny model of the paper, how those of the others differ
from it, and a digest of the names and shapes of their weights."""


@pytest.mark.parametrize(("architecture", "variant"), GRID)
def test_the_first_version_and_this_one_read_each_other(tmp_path, architecture, variant):
    config = tiny_config(architecture, variant)
    recorded = FIRST["models"][f"{architecture} {variant}"]
    first = FIRST["config"] | recorded["config"]
    if architecture != "encoder-decoder":
        del first["is_encoder_decoder"]
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    del written["auto_map"], written["transformers_version"]
    assert written == first
    (tmp_path / "config.json").write_text(json.dumps(first))
    loaded = VanillaTransformerConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        state = LANGUAGE_MODELS[architecture](loaded).state_dict()
    weights = json.dumps([[name, list(tensor.shape)] for name, tensor in sorted(state.items())])
    assert hashlib.sha256(weights.encode()).hexdigest() == recorded["weights"]


def test_what_follows_from_other_fields_is_a_number_in_a_dict_and_follows_them():
    config = tiny_config()
    assert (config.to_dict()["num_key_value_heads"], config.to_dict()["head_dim"]) == (4, 4)
    wider = VanillaTransformerConfig.from_dict(config.to_dict(), hidden_size=32, num_attention_heads=2)
    assert (wider.head_dim, wider.num_key_value_heads) == (16, 2)
    config.hidden_size = 30
    with pytest.raises(ValueError, match="hidden_size=30 is not a multiple of num_attention_heads=4"):
        LANGUAGE_MODELS["encoder-decoder"](config)
    config.num_attention_heads = 5
    assert (config.head_dim, config.num_key_value_heads) == (6, 5)
    LANGUAGE_MODELS["encoder-decoder"](config)
    grouped = tiny_config(num_key_value_heads=2, head_dim=6)
    grouped.hidden_size = 20
    assert (grouped.num_key_value_heads, grouped.head_dim) == (2, 6)


def test_an_architecture_that_is_changed_later_is_another_model():
    config = tiny_config(decoder_layers=None)
    for architecture, model_class in LANGUAGE_MODELS.items():
        config.architecture = architecture
        fresh = tiny_config(architecture, decoder_layers=None)
        assert config.to_dict() == fresh.to_dict()
        assert config.base_model_tp_plan == fresh.base_model_tp_plan
        model_class(config)
    with pytest.raises(ValueError, match="is_decoder follows from architecture='decoder-only'; set architecture"):
        config.is_decoder = False
    config.gated_feed_forward = True
    assert "decoder.layers.*.feed_forward.gate_proj" in config.base_model_tp_plan
    config.architecture = "encoder-decoder"
    config.architecture, config.decoder_layers = "encoder-only", 5
    with pytest.raises(ValueError, match="decoder_layers=5 differs from num_hidden_layers=2"):
        LANGUAGE_MODELS["encoder-only"](config)


def test_what_is_no_field_is_not_written(tmp_path, caplog):
    """Such a file could not be read again; transformers' own tests set attributes of other models on every config."""
    config = VanillaTransformerConfig()
    config.rms_norm_eps = 1.0
    propagates = logging.get_logger("transformers").propagate
    logging.get_logger("transformers").propagate = True
    try:
        caplog.set_level("WARNING")
        logging.get_logger("vanilla_transformer").propagate = True
        config.save_pretrained(tmp_path)
    finally:
        logging.get_logger("transformers").propagate = propagates
    assert "rms_norm_eps" in caplog.text
    assert "rms_norm_eps" not in (tmp_path / "config.json").read_text()
    VanillaTransformerConfig.from_pretrained(tmp_path)


def test_positional_arguments_are_refused():
    with pytest.raises(TypeError):
        VanillaTransformerConfig("decoder-only")


# ------------------------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", "50"),
        ("vocab_size", 50.0),
        ("hidden_size", None),
        ("dropout", "0.1"),
        ("tie_word_embeddings", "yes"),
        ("scale_embedding", 1),
        ("norm_position", "middle"),
        ("norm_type", "batchnorm"),
        ("architecture", "decoder"),
        ("position_encoding", "cosine"),
        ("init_scheme", "kaiming"),
        ("eos_token_id", "2"),
    ],
)
def test_wrong_type_is_refused_in_one_sentence_that_names_the_field(field, value):
    with pytest.raises(ValueError, match=field) as caught:
        VanillaTransformerConfig(**{field: value})
    assert "\n" not in str(caught.value)
    with pytest.raises(Exception, match=field):
        setattr(VanillaTransformerConfig(), field, value)


ROPE = {"position_encoding": "rope"}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"hidden_size": 10, "num_attention_heads": 4}, ["hidden_size=10", "num_attention_heads=4"]),
        ({"num_key_value_heads": 3}, ["num_attention_heads=8", "num_key_value_heads=3"]),
        ({"num_attention_heads": 0}, ["num_attention_heads=0"]),
        ({"vocab_size": 0}, ["vocab_size=0"]),
        ({"decoder_layers": 0}, ["decoder_layers=0"]),
        ({"max_position_embeddings": -1}, ["max_position_embeddings=-1"]),
        ({"dropout": 1.0}, ["dropout=1.0"]),
        ({"attention_dropout": -0.1}, ["attention_dropout=-0.1"]),
        ({"label_smoothing": 1}, ["label_smoothing=1"]),
        ({"norm_eps": -1.0}, ["norm_eps=-1.0"]),
        ({"initializer_range": -0.1}, ["initializer_range=-0.1"]),
        ({"norm_eps": float("nan")}, ["norm_eps=nan"]),
        ({"rope_theta": float("inf")}, ["rope_theta=inf"]),
        ({"attention_scale": float("nan")}, ["attention_scale=nan"]),
        ({"hidden_act": "rellu"}, ["hidden_act='rellu'", "'relu'"]),
        ({"pad_token_id": 37000}, ["pad_token_id=37000", "36999"]),
        ({"eos_token_id": [2, 37000]}, ["eos_token_id=37000"]),
        ({"bos_token_id": -1}, ["bos_token_id=-1"]),
        ({"target_vocab_size": 20, "decoder_start_token_id": 20}, ["decoder_start_token_id=20", "19"]),
        ({"architecture": "decoder-only", "target_vocab_size": 9}, ["target_vocab_size", "decoder-only"]),
        ({"architecture": "encoder-only", "decoder_layers": 3}, ["decoder_layers=3", "num_hidden_layers"]),
        ({"position_encoding": "alibi", "position_offset": 2}, ["position_offset=2", "'alibi'"]),
        ({"position_offset": -1}, ["position_offset=-1"]),
        ({"sinusoidal_form": "fairseq", "hidden_size": 2, "num_attention_heads": 1}, ["'fairseq'", "4"]),
        ({"relative_attention_num_buckets": 6}, ["relative_attention_num_buckets=6"]),
        ({"relative_attention_max_distance": 16}, ["relative_attention_max_distance=16", "above 16"]),
        ({"embedding_size": 8}, ["embedding_size=8", "output_transform=True"]),
        ({"embedding_size": 0}, ["embedding_size=0"]),
        ({"type_vocab_size": 2}, ["type_vocab_size=2", "'encoder-only'"]),
        ({"attention_scale": 0}, ["attention_scale=0"]),
        ({"output_scale": -1.0}, ["output_scale=-1.0"]),
        ({"architecture": "encoder-only", "share_encoder_decoder_embeddings": True}, ["'encoder-decoder'"]),
        ({"target_vocab_size": 9, "share_encoder_decoder_embeddings": True}, ["target_vocab_size=9"]),
        ({"position_encoding": "rope", "head_dim": 5}, ["head_dim=5", "'rope'"]),
        ({"rope_theta": 0}, ["rope_theta=0"]),
        ({"num_beams": 5}, ["'num_beams'", "model.generation_config"]),
        ({"max_new_tokens": 5}, ["'max_new_tokens'", "model.generation_config"]),
        ({"sliding_window": 0}, ["sliding_window=0"]),
        ({"value_head_dim": 0}, ["value_head_dim=0"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "position_encoding='rope'"]),
        ({**ROPE, "partial_rotary_factor": 1.5}, ["partial_rotary_factor=1.5"]),
        ({**ROPE, "rope_parameters": {"rope_type": ["yarn"]}}, ["rope_type=['yarn'] is not known"]),
        ({**ROPE, "rope_parameters": {"rope_type": "yarm"}}, ["rope_type='yarm'", "did you mean 'yarn'?"]),
        ({**ROPE, "rope_parameters": {"rope_type": "linear"}}, ["rope_type='linear' needs factor"]),
        ({**ROPE, "rope_parameters": {"rope_type": "linear", "factor": "2"}}, ["factor='2'"]),
        ({**ROPE, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "beta": 1}}, ["beta has no effect"]),
        ({**ROPE, "rope_parameters": {"sliding_attention": {}}}, ["'sliding_attention' is none"]),
        ({**ROPE, "rope_parameters": {"full_attention": {}, "factor": 2.0}}, ["'factor' stands beside"]),
        ({**ROPE, "head_dim": 2, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, ["4 numbers"]),
        ({**ROPE, "rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, ["high_freq_factor must be above"]),
        ({"layer_types": ["full_attention"]}, ["1 entries", "6 in the encoder"]),
        ({"layer_types": ["window"] * 6}, ["'window' must be 'full_attention'"]),
        ({"layer_types": ["sliding_attention"] * 6}, ["needs sliding_window"]),
        (
            {"layer_types": ["sliding_attention", "full_attention"] * 3, "sliding_window": 4, "shared_layers": True},
            ["shared_layers=False"],
        ),
    ],
)
def test_impossible_combination_is_refused_in_one_sentence(given, words):
    with pytest.raises(ValueError, match="VanillaTransformerConfig") as caught:
        VanillaTransformerConfig(**given)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_change_that_makes_no_sense_is_refused_on_saving(tmp_path):
    config = tiny_config()
    config.hidden_act = "rellu"
    with pytest.raises(Exception, match="rellu"):
        config.save_pretrained(tmp_path)


@pytest.mark.parametrize("architecture", ["encoder-decoder", "encoder-only", "decoder-only"])
def test_architecture_decides_what_transformers_asks(architecture):
    config = tiny_config(architecture)
    assert config.is_encoder_decoder == (architecture == "encoder-decoder")
    assert config.is_decoder == (architecture == "decoder-only")


def test_flags_follow_an_architecture_given_while_loading(tmp_path):
    tiny_config("encoder-decoder", decoder_layers=None).save_pretrained(tmp_path)
    config = VanillaTransformerConfig.from_pretrained(tmp_path, architecture="decoder-only")
    assert (config.is_encoder_decoder, config.is_decoder) == (False, True)


def test_text_config_of_the_decoder_has_its_depth_and_vocabulary():
    config = tiny_config(variant="separate")
    decoder = config.get_text_config(decoder=True)
    assert (decoder.num_hidden_layers, decoder.vocab_size) == (3, 43)
    assert (config.num_hidden_layers, config.vocab_size) == (2, 50)
    assert config.get_text_config() is config


# ---------------------------------------------------------------------------------------------------- save and load


@pytest.mark.parametrize(("architecture", "variant"), GRID)
def test_save_and_load(tmp_path, architecture, variant):
    config = tiny_config(architecture, variant, eos_token_id=[2, 3])
    config.save_pretrained(tmp_path)
    for loaded in (VanillaTransformerConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert type(loaded) is VanillaTransformerConfig
        for name in config.to_dict():
            if name not in ("transformers_version", "_name_or_path"):
                assert getattr(loaded, name) == getattr(config, name), name
    for twin in (
        copy.deepcopy(config),
        pickle.loads(pickle.dumps(config)),
        VanillaTransformerConfig(**config.to_dict()),
    ):
        assert twin.to_dict() == config.to_dict()


def test_file_holds_canonical_names_only(tmp_path):
    VanillaTransformerConfig(d_model=64, d_ff=32, encoder_layers=2).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert not set(ALIASES) & set(written)
    assert (written["hidden_size"], written["intermediate_size"], written["num_hidden_layers"]) == (64, 32, 2)
    assert written["model_type"] == "vanilla_transformer" and written["architecture"] == "encoder-decoder"


@pytest.mark.parametrize(("alias", "canonical"), ALIASES.items())
def test_override_by_either_name_while_loading(tmp_path, alias, canonical):
    tiny_config().save_pretrained(tmp_path)
    for name in (alias, canonical):
        assert getattr(VanillaTransformerConfig.from_pretrained(tmp_path, **{name: 32}), canonical) == 32


def test_width_given_while_loading_is_consistent(tmp_path):
    """Values derived from the old width must not survive it in silence."""
    tiny_config().save_pretrained(tmp_path)
    loaded = VanillaTransformerConfig.from_pretrained(tmp_path, hidden_size=32, num_attention_heads=8)
    assert (loaded.head_dim, loaded.num_key_value_heads) == (4, 8)


def test_presets_name_their_source_and_take_overrides():
    presets = VanillaTransformerConfig.presets()
    assert {"transformer-base", "transformer-big", "transformer-tiny"} <= set(presets)
    assert all(presets.values())
    big = VanillaTransformerConfig.from_preset("transformer-big", d_model=512, vocab_size=100)
    assert (big.hidden_size, big.intermediate_size, big.vocab_size) == (512, 4096, 100)
    with pytest.raises(ValueError, match="unknown preset 'transformer-tine'; did you mean 'transformer-tiny'"):
        VanillaTransformerConfig.from_preset("transformer-tine")


def test_model_type_is_ours():
    """Nothing of transformers has it."""
    models = Path(transformers.__file__).parent / "models"
    assert (models / "bart").is_dir() and not (models / VanillaTransformerConfig.model_type).exists()
