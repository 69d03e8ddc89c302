"""Models of transformers' families as ours, and back: the same outputs, and the same weights bit by bit."""

import copy
import json
import sys

import pytest
import sentencepiece
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

import vanilla_transformer as vt
from closeness import assert_close
from families import ALL_MODELS, LANGUAGE_MODELS, build, save_with_tokenizer
from runs import recipe_values
from tiny import tiny_model
from vanilla_transformer import cli
from vanilla_transformer.conversion import ConversionError, from_transformers, to_transformers
from vanilla_transformer.conversion.architecture_adapter import differences, shape_of
from vanilla_transformer.conversion.families import FAMILIES
from vanilla_transformer.conversion.folders import convert_folder
from vanilla_transformer.conversion.parity import check_parity, measure_parity
from vanilla_transformer.data import TextData
from vanilla_transformer.data.hub import load_hub
from vanilla_transformer.generation.text_generator import TextGenerator
from vanilla_transformer.hub import model_files
from vanilla_transformer.recipes.recipe import Recipe, RecipeError
from vanilla_transformer.runs.averaging import average_checkpoints
from vanilla_transformer.tokenization import train_tokenizer
from vanilla_transformer.utils.log import no_log
from vanilla_transformer.utils.text_files import existing_file

# weights of theirs that no layer reads, so that they do not come back
UNREAD = {"bart-scaled-untied": {"model.shared.weight"}, "bert-untied": {"cls.predictions.bias"}}


def silent(line):
    raise AssertionError(line)


def convert(model, lines=None):
    return from_transformers(model, log=silent if lines is None else lines.append)


def assert_same_weights(one, other, but=frozenset()):
    assert one.keys() == other.keys()
    assert [name for name in one if name not in but and not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("name", ALL_MODELS)
def test_same_outputs_and_back_bit_by_bit(name):
    """Tiny: logits, hidden states, generated tokens; and the round trip, from either side."""
    theirs = build(name)
    ours = convert(theirs, [])
    measured = measure_parity(theirs, ours)
    assert measured.holds(), str(measured)
    if theirs.can_generate():
        assert measured.generated == {"greedy": True, "4 beams": True}

    back = to_transformers(ours, theirs.config.model_type, log=silent)
    assert type(back) is type(theirs)
    assert_same_weights(theirs.state_dict(), back.state_dict(), UNREAD.get(name, set()))
    again = convert(back, [])
    assert again.config.to_dict() == ours.config.to_dict()
    assert_same_weights(ours.state_dict(), again.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_same_outputs_at_the_published_depth(name):
    case = LANGUAGE_MODELS[name]
    # the published spread of initial weights, too
    spread = {"init_std": 0.02, "initializer_range": 0.02}
    theirs = case.model(case.depth, **{key: value for key, value in spread.items() if key in case.settings})
    measured = check_parity(theirs, convert(theirs, []))
    assert measured.logits <= 1e-4 and measured.states <= 1e-4


@pytest.mark.parametrize("name", [name for name in LANGUAGE_MODELS if name in FAMILIES])
def test_every_weight_counts_in_the_check(name):
    """One tensor after another is changed, and the check notices each."""
    theirs = build(name)
    ours = convert(theirs, [])
    generator = torch.Generator().manual_seed(0)
    for weight, tensor in ours.state_dict().items():
        # softmax does not change where all scores of a query grow alike, as by the bias of keys
        if weight.endswith("k_proj.bias"):
            continue
        before = tensor.clone()
        tensor += 0.5 * torch.randn(tensor.shape, generator=generator)
        if weight.endswith("embed_positions.weight"):
            # only the first rows are read by short sequences
            tensor[12:] = before[12:]
        assert not measure_parity(theirs, ours).holds(), weight
        tensor.copy_(before)
    assert measure_parity(theirs, ours).holds()


def test_a_difference_is_an_error():
    theirs = build("marian")
    ours = convert(theirs)
    with torch.no_grad():
        ours.model.decoder.layers[1].cross_attn.v_proj.weight[0, 0] += 0.1
    with pytest.raises(
        ConversionError, match="MarianMTModel and VanillaTransformerForConditionalGeneration do not compute"
    ):
        check_parity(theirs, ours)
    with torch.no_grad():
        ours.model.decoder.layers[1].cross_attn.v_proj.weight[0, 0] = torch.nan
    assert not measure_parity(theirs, ours).holds()


def test_left_padding_alone_is_compared_with_the_row_by_itself():
    """Independent of the check: positions here are counted from the mask, wherever padding stands."""
    for name in ("marian", "bart", "t5", "bert"):
        theirs = build(name)
        ours = convert(theirs)
        row = torch.tensor([[7, 9, 30, 12, 25]])
        padded = torch.cat([torch.full((1, 3), theirs.config.pad_token_id), row], dim=1)
        mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
        target = {"decoder_input_ids": row[:, :3]} if theirs.config.is_encoder_decoder else {}
        with torch.no_grad():
            expected = theirs(row, **target).logits
            logits = ours(padded, mask, **target).logits
        assert_close(logits if target else logits[:, 3:], expected, atol=1e-4)


@pytest.mark.parametrize("name", ["marian", "t5-v1.1", "gpt2", "qwen2-window"])
def test_settings_of_generation_go_along(name, tmp_path):
    theirs = build(name)
    theirs.generation_config = GenerationConfig(
        **{
            **theirs.generation_config.to_diff_dict(),
            "bad_words_ids": [[5], [17, 18]],
            "max_length": 11,
            "num_beams": 3,
            "no_repeat_ngram_size": 2,
            "length_penalty": 0.7,
            "forced_eos_token_id": 2,
        }
    )
    convert(theirs).save_pretrained(tmp_path)
    ours = getattr(vt, ours_for(theirs)).from_pretrained(tmp_path)
    tokens = torch.randint(4, 50, (3, 5), generator=torch.Generator().manual_seed(1))
    assert ours.generation_config.bad_words_ids == [[5], [17, 18]]
    assert torch.equal(theirs.generate(tokens), ours.generate(tokens))
    back = to_transformers(ours, theirs.config.model_type, log=silent)
    assert torch.equal(theirs.generate(tokens), back.generate(tokens))


def ours_for(theirs):
    return FAMILIES[theirs.config.model_type].heads[type(theirs).__name__]


@pytest.mark.parametrize("name", ["bart", "albert", "llama"])
def test_half_precision_is_kept_bit_by_bit(name, tmp_path):
    build(name).save_pretrained(tmp_path)
    # loaded, since `model.to` would round the rotary frequencies of Llama, too
    theirs = getattr(transformers, ALL_MODELS[name].class_name).from_pretrained(tmp_path, dtype=torch.bfloat16)
    ours = convert(theirs)
    assert {tensor.dtype for tensor in ours.state_dict().values()} == {torch.bfloat16}
    back = to_transformers(ours, name, log=silent)
    assert_same_weights(theirs.state_dict(), back.state_dict())
    assert measure_parity(theirs, ours).holds()
    assert theirs.dtype == ours.dtype == torch.bfloat16  # measured on copies


def test_dtype_of_a_loaded_model(tmp_path):
    build("gpt2").save_pretrained(tmp_path)
    assert from_transformers(tmp_path).dtype == torch.float32
    assert from_transformers(str(tmp_path), dtype=torch.bfloat16).dtype == torch.bfloat16


def test_the_model_given_does_not_change_with_the_converted_one():
    theirs = build("marian")
    before = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    ours = convert(theirs)
    back = to_transformers(ours)
    with torch.no_grad():
        for model in (ours, back):
            for parameter in model.parameters():
                parameter.zero_()
    assert_same_weights(before, theirs.state_dict())


def test_ties_are_those_of_the_weights():
    tied, untied = convert(build("t5")), convert(build("t5-v1.1"))
    assert tied.config.tie_word_embeddings and tied.lm_head.weight is tied.model.encoder.embed_tokens.weight
    assert tied.config.output_scale == 32**-0.5 and untied.config.output_scale == 1
    assert not untied.config.tie_word_embeddings and untied.config.has_shared_embeddings
    assert untied.lm_head.weight is not untied.model.decoder.embed_tokens.weight
    back = to_transformers(untied)
    assert back.lm_head.weight is not back.shared.weight and not back.config.scale_decoder_outputs


BART_BASE = {
    "d_model": 768,
    **{
        f"{stack}_{name}": value
        for stack in ("encoder", "decoder")
        for name, value in (("layers", 6), ("ffn_dim", 3072))
    },
    **{f"{stack}_attention_heads": 12 for stack in ("encoder", "decoder")},
}
# settings of the published files, where they are not the defaults of transformers
PUBLISHED = {
    "bert-base": ("bert", {}),
    "roberta-base": ("roberta", {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "albert-base": ("albert", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    "electra-small": ("electra", {}),
    "bart-large": ("bart", {}),
    "bart-base": ("bart", BART_BASE),
    "t5-small": ("t5", {}),
    "gpt2": ("gpt2", {}),
    "llama-2-7b": ("llama", {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}),
    "llama-3-8b": (
        "llama",
        {
            "vocab_size": 128256,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        },
    ),
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_presets_are_what_published_configurations_become(preset):
    name, settings = PUBLISHED[preset]
    family = FAMILIES[name]
    model_class = getattr(transformers, next(iter(family.heads)))
    ours = vt.VanillaTransformerConfig(**family.target_fields(model_class.config_class(**settings)))
    expected = vt.VanillaTransformerConfig.from_preset(preset)
    assert differences(shape_of(ours, True), shape_of(expected, True)) == []


# --------------------------------------------------------------------------------------- what is left out, and refused


def test_what_has_no_place_is_dropped_with_a_word():
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**LANGUAGE_MODELS["bert"].settings)).eval()
    lines = []
    ours = convert(theirs, lines)
    assert type(ours) is vt.VanillaTransformerForMaskedLM
    assert any("bert.pooler.dense.weight" in line and "one vector" in line for line in lines)
    assert any("cls.seq_relationship.weight" in line for line in lines)
    assert len(lines) == 2
    tokens = torch.tensor([[4, 9, 30]])
    assert_close(ours(tokens).logits, theirs(tokens).prediction_logits, atol=1e-4)


def test_the_discriminator_of_electra_gives_a_base_model():
    theirs = transformers.ElectraForPreTraining(
        transformers.ElectraConfig(**LANGUAGE_MODELS["electra"].settings)
    ).eval()
    lines = []
    ours = convert(theirs, lines)
    assert type(ours) is vt.VanillaTransformerModel and "discriminator_predictions" in lines[0]
    tokens = torch.tensor([[4, 9, 30]])
    assert_close(ours(tokens)[0], theirs.electra(tokens)[0], atol=1e-4)


def test_settings_that_matter_only_in_training_are_told():
    lines = []
    convert(build("marian", encoder_layerdrop=0.1), lines)
    assert lines == ["encoder_layerdrop=0.1 is left out: it matters only in training."]
    ours = convert(build("bert"))
    ours.config.activation_dropout = 0.3
    lines = []
    to_transformers(ours, "bert", log=lines.append)
    assert lines == ["activation_dropout=0.3 is left out: bert has no such setting."]


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "turns whole heads",
        ),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention=True"),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 5,
                    "long_factor": [2.0] * 5,
                    "factor": 2.0,
                    "original_max_position_embeddings": 32,
                }
            },
            "rope_type='longrope' of rope_parameters cannot be converted",
        ),
        ("ernie", {"use_task_id": True}, "use_task_id=True"),
        ("distilbert", {"sinusoidal_pos_embds": True}, "sinusoidal_pos_embds=True"),
        ("openai-gpt", {"afn": "swish"}, "afn='swish' cannot be converted; gelu, relu, silu can"),
        ("mbart", {"decoder_ffn_dim": 24}, "decoder_ffn_dim=24"),
        ("albert", {"num_hidden_groups": 2}, "num_hidden_groups=2"),
        ("albert", {"inner_group_num": 2}, "inner_group_num=2"),
        ("albert", {"embedding_size": 32}, "embedding_size=32"),
        ("bert", {"is_decoder": True}, "is_decoder=True"),
        ("roberta", {"hidden_act": "relu"}, "its head keeps to 'gelu'"),
        ("bart", {"decoder_attention_heads": 2}, "decoder_attention_heads=2"),
        ("marian", {"decoder_ffn_dim": 24}, "decoder_ffn_dim=24"),
    ],
)
def test_settings_without_a_place_are_refused(name, changes, said):
    with pytest.raises(ConversionError, match=said) as error:
        convert(build(name, **changes), [])
    assert str(error.value).startswith(f"{name}: ") and "\n" not in str(error.value)


def test_other_classes_and_families_are_refused():
    settings = LANGUAGE_MODELS["bert"].settings
    config = transformers.BertConfig(num_hidden_layers=1, **settings)
    with pytest.raises(
        ConversionError, match="BertForSequenceClassification.* one vector of a sequence in another way"
    ):
        convert(transformers.BertForSequenceClassification(config))
    with pytest.raises(ConversionError, match="FSMTModel cannot be converted.*FSMTForConditionalGeneration can"):
        convert(build("fsmt").model)
    config = transformers.GPTNeoXConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=20)
    with pytest.raises(
        ConversionError, match="'gpt_neox' cannot be converted; those of marian, pegasus, bart, .* can"
    ):
        convert(transformers.GPTNeoXForCausalLM(config))
    with pytest.raises(ConversionError, match="a model of this package already"):
        convert(tiny_model())


def test_a_trained_table_of_positions_is_refused():
    theirs = build("marian")
    with torch.no_grad():
        theirs.model.decoder.embed_positions.weight[5] += 0.1
    with pytest.raises(ConversionError, match="model.decoder.embed_positions.weight differs from the sinusoids"):
        convert(theirs)


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.pop("model.layers.1.mlp.up_proj.weight"), "no weight for model.layers.1.mlp.up_proj.weight"),
        (
            lambda w: w.update({"model.layers.0.q_norm.weight": torch.ones(8)}),
            "no place for model.layers.0.q_norm.weight",
        ),
        (lambda w: w.update({"model.norm.weight": torch.ones(9)}), "size does not fit of model.norm.weight"),
    ],
)
def test_weights_that_lack_or_have_no_place_stop_the_conversion(change, said, tmp_path):
    build("llama").save_pretrained(tmp_path / "theirs")
    change_weights(tmp_path / "theirs", change)
    with pytest.raises(ConversionError, match=said):
        from_transformers(tmp_path / "theirs", log=silent)


def test_weights_that_a_checkpoint_has_beside_are_dropped_with_a_word(tmp_path):
    """As bert-base-uncased, which names BertForMaskedLM and holds all of pre-training."""
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**LANGUAGE_MODELS["bert"].settings)).eval()
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMaskedLM"]}))
    lines = []
    ours = from_transformers(tmp_path, log=lines.append)
    assert {line.partition(",")[0] for line in lines} == {
        "bert.pooler.dense.bias",
        "cls.seq_relationship.bias",
    }
    tokens = torch.tensor([[4, 9, 30]])
    assert_close(ours(tokens).logits, theirs(tokens).prediction_logits, atol=1e-4)


# -------------------------------------------------------------------------------------------------------------- export


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("marian", {"architecture": "encoder-decoder", "sinusoidal_form": "concatenated", "output_bias": "fixed"}),
        (
            "fsmt",
            {
                "architecture": "encoder-decoder",
                "sinusoidal_form": "fairseq",
                "position_offset": 1,
                "target_vocab_size": 43,
            },
        ),
        ("gpt2", {"architecture": "decoder-only", "position_encoding": "learned", "norm_position": "pre"}),
        (
            "llama",
            {
                "architecture": "decoder-only",
                "position_encoding": "rope",
                "norm_position": "pre",
                "norm_type": "rmsnorm",
                "gated_feed_forward": True,
                "hidden_act": "silu",
                "attention_bias": False,
                "mlp_bias": False,
            },
        ),
    ],
)
def test_models_of_our_own_find_a_family(family, fields, tmp_path):
    scale = {"scale_embedding": False} if fields["architecture"] == "decoder-only" else {}
    ties = {"tie_word_embeddings": False} if family == "fsmt" else {}
    ours = tiny_model(**fields, **scale, **ties, norm_eps=1e-5)
    theirs = to_transformers(ours)
    assert theirs.config.model_type == family
    theirs.save_pretrained(tmp_path)
    loaded = type(theirs).from_pretrained(tmp_path)
    check_parity(loaded, ours)
    assert_same_weights(ours.state_dict(), from_transformers(loaded).state_dict())


def test_a_model_that_no_family_holds_is_refused_by_field():
    with pytest.raises(
        ConversionError, match=r"none has position_encoding='alibi'; in the way of the nearest, \w+, is "
    ) as error:
        to_transformers(tiny_model(position_encoding="alibi"))
    assert "\n" not in str(error.value)
    with pytest.raises(ConversionError, match=r"^marian cannot hold this model; in the way is norm_position='pre'"):
        to_transformers(
            tiny_model(norm_position="pre", norm_eps=1e-5, sinusoidal_form="concatenated", output_bias="fixed"),
            "marian",
        )
    with pytest.raises(
        ConversionError, match=r"^albert cannot hold .* is albert: embedding_size=32 cannot be converted"
    ):
        settings = convert(build("albert")).config.to_dict() | {"embedding_size": None}
        to_transformers(vt.VanillaTransformerForMaskedLM(vt.VanillaTransformerConfig(**settings)), "albert")
    with pytest.raises(
        ConversionError, match="^VanillaTransformerForMaskedLM cannot be converted: gpt2 has no class with such a head"
    ):
        to_transformers(tiny_model("encoder-only"), "gpt2")
    with pytest.raises(
        ConversionError,
        match="^VanillaTransformerForSequenceClassification cannot be .* no family of transformers has a class",
    ):
        to_transformers(tiny_model("encoder-only", model_class=vt.VanillaTransformerForSequenceClassification))
    with pytest.raises(ConversionError, match="unknown family 'berd'; the families are marian,"):
        to_transformers(tiny_model("encoder-only"), "berd")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["marian", "fsmt", "gpt2"])
def test_models_in_half_precision_are_compared_in_float32(name, dtype, tmp_path):
    """Also where transformers keeps sinusoids in the dtype of the weights; weights stay as they are, bit by bit."""
    theirs = build(name).to(dtype)
    ours = convert(theirs)
    assert ours.dtype == dtype
    measured = measure_parity(theirs, ours)
    assert measured.holds() and measured.generated == {"greedy": True, "4 beams": True}, str(measured)
    back = to_transformers(ours, name, log=silent)
    assert_same_weights(theirs.state_dict(), back.state_dict())
    with torch.no_grad():
        ours.model.state_dict()[max(n for n in ours.model.state_dict() if n.endswith("down_proj.weight"))][0] += 0.1
    assert not measure_parity(theirs, ours).holds()


@pytest.mark.parametrize(
    ("name", "class_name"),
    [("t5", "T5WithLMHeadModel"), ("llama", "LLaMAForCausalLM"), ("gpt2", "GPT2WithLMHead"), ("marian", None)],
)
def test_class_names_of_earlier_years_are_read_as_transformers_reads_them(name, class_name, tmp_path):
    theirs = build(name)
    theirs.save_pretrained(tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({**config, "architectures": [class_name]}))
    if class_name is None:
        (tmp_path / "theirs" / "config.json").write_text(json.dumps({**config, "architectures": None}))
    lines = []
    convert_folder(tmp_path / "theirs", tmp_path / "ours", log=lines.append)
    today = (
        f"{tmp_path / 'theirs'} names the class {class_name}, which is {type(theirs).__name__} in transformers today."
    )
    assert [line for line in lines if "names the class" in line] == [today] * (class_name is not None)
    assert any(line.startswith("checked: ") for line in lines)


def test_a_class_that_transformers_never_had_is_refused(tmp_path, capsys):
    save_with_tokenizer("gpt2", tmp_path / "theirs")
    configure(architectures=["Foo"])(tmp_path / "theirs")
    capsys.readouterr()
    assert run(tmp_path / "theirs", tmp_path / "ours") == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: {tmp_path / 'theirs'} names the class 'Foo', which transformers does not have; set architectures in its "
        "config.json to one of GPT2LMHeadModel, GPT2Model."
    )
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("name", ["gpt2", "t5", "marian"])
def test_what_convert_prints_is_true(name, tmp_path, capsys):
    """Every line: of a model with a tokenizer, of one without, and on the way back."""
    save_with_tokenizer(name, tmp_path / "theirs")
    build(name).save_pretrained(tmp_path / "bare")
    ways = {
        "ours": ["theirs"],
        "back": ["ours", "--to-transformers", "--family", name],
        "ours-bare": ["bare"],
    }
    capsys.readouterr()
    for output, (source, *options) in ways.items():
        assert run(tmp_path / source, tmp_path / output, *options) == 0
        lines = capsys.readouterr().err.splitlines()
        has_tokenizer = (tmp_path / output / "tokenizer.json").is_file()
        assert has_tokenizer == ("bare" not in output)
        expected = (
            [] if has_tokenizer else [f"{tmp_path / source} has no tokenizer, so neither has the converted model."]
        )
        *others, checked, saved = lines
        assert others == expected
        assert checked.startswith("checked: largest difference of logits ")
        assert saved.endswith(f" saved in {tmp_path / output}")


@pytest.mark.parametrize(
    ("family", "name", "fields"),
    [
        ("llama", "llama", {"norm_eps": 1e-3, "rope_theta": 5.0}),
        ("llama", "llama", {"qk_norm": "rmsnorm"}),
        ("llama", "llama", {"value_head_dim": 6}),
        ("llama", "llama", {"partial_rotary_factor": 0.4}),
        ("llama", "llama", {"rotary_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ("qwen2", "qwen2-window", {"layer_types": ["sliding_attention", "full_attention"]}),
        ("gpt2", "gpt2", {"attention_scale": 0.3}),
        ("bert", "bert", {"position_offset": 2}),
        ("t5", "t5", {"output_scale": 0.5}),
        ("electra", "electra", {"hidden_act": "relu"}),
    ],
)
def test_every_field_is_held_or_refused(family, name, fields):
    """A model with other values either comes back the same, or the family is refused with the field's name."""
    config = copy.deepcopy(convert(build(name)).config)
    config = vt.VanillaTransformerConfig(**{**config.to_dict(), **fields})
    ours = getattr(vt, FAMILIES[family].heads[LANGUAGE_MODELS[name].class_name])(config).eval()
    try:
        theirs = to_transformers(ours, family, log=silent)
    except ConversionError as error:
        assert next(iter(fields)) in str(error)
    else:
        check_parity(theirs, ours)


# ------------------------------------------------------------------------------------------------------------- command


def run(*arguments):
    """What the command ends with."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(["convert", *map(str, arguments)])
    return stopped.value.code


def test_the_command_converts_model_and_tokenizer_and_back(tmp_path, capsys):
    theirs = save_with_tokenizer("bart", tmp_path / "bart")
    assert run(tmp_path / "bart", tmp_path / "ours") == 0
    said = capsys.readouterr().err
    assert "checked: largest difference of logits" in said and "4 beams: the same tokens" in said
    ours = AutoModel.from_pretrained(tmp_path / "ours")
    assert isinstance(ours, vt.VanillaTransformerModel)
    text = "12 cats and 144 dogs"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    assert tokenizer(text) == AutoTokenizer.from_pretrained(tmp_path / "bart")(text)
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []

    assert run(tmp_path / "ours", tmp_path / "back", "--to-transformers", "--family", "bart") == 0
    back = transformers.BartForConditionalGeneration.from_pretrained(tmp_path / "back")
    assert_same_weights(theirs.state_dict(), back.state_dict())
    assert AutoTokenizer.from_pretrained(tmp_path / "back")(text) == tokenizer(text)


def test_the_command_leaves_nothing_where_outputs_differ(tmp_path, capsys, monkeypatch):
    save_with_tokenizer("gpt2", tmp_path / "theirs")
    import vanilla_transformer.conversion.folders as folders

    def wrong(*arguments, **options):
        model = from_transformers(*arguments, **options)
        with torch.no_grad():
            model.model.decoder.layers[0].feed_forward.down_proj.bias += 0.01
        return model

    monkeypatch.setattr(folders.convert, "from_transformers", wrong)
    assert run(tmp_path / "theirs", tmp_path / "ours") == 2
    assert "do not compute the same" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{theirs}", "{full}"], "is not empty"),
        (["{theirs}", "{new}", "--family", "bart"], "--family says what"),
        (["{theirs}", "{new}", "--kind", "sockeye"], "is unknown"),
        (["{theirs}", "{new}", "--kind", "fairseq", "--revision", "x"], "have no effect there"),
        (["{theirs}", "{new}", "--source-dictionary", "d"], "those of --kind fairseq"),
        (["{theirs}", "{new}", "--to-transformers"], "is a model of the family 'gpt2', not one of this package"),
    ],
)
def test_mistakes_end_in_one_sentence(arguments, said, tmp_path, capsys):
    build("gpt2").save_pretrained(tmp_path / "theirs")
    capsys.readouterr()
    places = {"theirs": tmp_path / "theirs", "full": tmp_path / "theirs", "new": tmp_path / "new"}
    assert run(*(argument.format(**places) for argument in arguments)) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and len(error.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_a_revision_on_the_hub(server, python, tmp_path):
    """In processes of their own, as the address of the Hub is read on import."""
    for branch, seed in (("main", 0), ("older", 1)):
        save_with_tokenizer("gpt2", tmp_path / branch, seed=seed)
        files = {path.name: path.read_bytes() for path in (tmp_path / branch).iterdir()}
        if branch == "main":
            server.put("them/gpt2", files)
        server.repositories["them/gpt2"].add(branch, files, "weights")
    code = "import sys; from vanilla_transformer.cli import main; main(sys.argv[1:])"
    for name, options in (("main", []), ("older", ["--revision", "older"])):
        python.run(code, "convert", "them/gpt2", tmp_path / f"of-{name}", *options)
        ours = vt.VanillaTransformerForCausalLM.from_pretrained(tmp_path / f"of-{name}")
        theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / name)
        check_parity(theirs, ours)


def test_a_model_without_tokenizer_is_converted_with_a_word(tmp_path):
    build("bert").save_pretrained(tmp_path / "theirs")
    lines = []
    convert_folder(tmp_path / "theirs", tmp_path / "deep" / "ours", log=lines.append)
    assert any("has no tokenizer" in line for line in lines)
    assert (tmp_path / "deep" / "ours" / "model.safetensors").is_file()


def test_a_tokenizer_that_needs_another_package_says_so(tmp_path, monkeypatch):
    fsmt_of_two_vocabularies(tmp_path / "theirs")
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(ConversionError, match="needs sacremoses, which is not installed; `pip install sacremoses`"):
        convert_folder(tmp_path / "theirs", tmp_path / "ours", log=no_log)
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    "name", [*(name for name in LANGUAGE_MODELS if name in FAMILIES), "t5-v1.1", "marian-separate"]
)
def test_folders_there_and_back(name, tmp_path):
    """Saved and loaded at every step, as the command does it."""
    theirs = build(name)
    theirs.save_pretrained(tmp_path / "theirs")
    lines = []
    convert_folder(tmp_path / "theirs", tmp_path / "ours", log=lines.append)
    convert_folder(
        tmp_path / "ours", tmp_path / "back", to_transformers=True, family=theirs.config.model_type, log=lines.append
    )
    assert sum(line.startswith("checked: largest difference") for line in lines) == 2
    back = type(theirs).from_pretrained(tmp_path / "back")
    assert_same_weights(theirs.state_dict(), back.state_dict())
    if theirs.can_generate():
        tokens = torch.randint(4, 50, (2, 5), generator=torch.Generator().manual_seed(1))
        assert torch.equal(theirs.generate(tokens, max_length=12), back.generate(tokens, max_length=12))


class Evil:
    """What a file could do while it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickled_weights_are_read_as_data_alone(tmp_path, capsys):
    """As most OPUS-MT models are stored."""
    theirs = build("marian")
    theirs.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "model.safetensors").unlink()
    pickled = tmp_path / "theirs" / "pytorch_model.bin"
    torch.save(theirs.state_dict(), pickled)
    assert run(tmp_path / "theirs", tmp_path / "ours") == 0
    ours = vt.VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "ours")
    check_parity(theirs, ours)
    torch.save({**theirs.state_dict(), "evil": Evil(tmp_path / "done")}, pickled)
    capsys.readouterr()
    assert run(tmp_path / "theirs", tmp_path / "other") == 2
    error = capsys.readouterr().err.strip()
    assert "pytorch_model.bin" in error and "open" in error and len(error.splitlines()) == 1
    assert not (tmp_path / "done").exists() and not (tmp_path / "other").exists()


# -------------------------------------------------------------------------------------- what is damaged, or in the way


def cut_off(name, kept):
    def change(folder):
        (folder / name).write_bytes((folder / name).read_bytes()[:kept])

    return change


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def configure(**settings):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **settings}))

    return change


def pickled(content):
    def change(folder):
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(b"")
        if content is not None:
            torch.save(content, folder / "pytorch_model.bin")

    return change


DAMAGES = {
    "half": (cut_off("model.safetensors", 3000), "the weights in {folder} are damaged"),
    "empty": (cut_off("model.safetensors", 0), "the weights in {folder} are damaged"),
    "pickled-empty": (pickled(None), "the weights in {folder} are damaged"),
    "pickled-list": (pickled([1, 2]), "the weights of {folder} are damaged"),
    "config-cut": (cut_off("config.json", 40), "config.json of {folder} is damaged, as it is not valid JSON"),
    "heads": (configure(n_head="four"), "expected int, got str"),
    "no-heads": (configure(n_head=0), "the config.json or the weights of {folder} are damaged (ZeroDivisionError"),
    "activation": (configure(activation_function="relo"), "are damaged (KeyError: 'relo')"),
    "tokenizer": (write("tokenizer_config.json", b"[]"), "the tokenizer of {folder} cannot be loaded"),
}
OF_OURS = ("half", "empty", "config-cut", "tokenizer")


@pytest.mark.parametrize(
    ("direction", "damage"),
    [*(("to-ours", damage) for damage in DAMAGES), *(("to-theirs", damage) for damage in OF_OURS)],
)
def test_damaged_folders_end_in_one_sentence(direction, damage, tmp_path, capsys):
    change, said = DAMAGES[damage]
    theirs = save_with_tokenizer("gpt2", tmp_path / "model")
    options = []
    if direction == "to-theirs":
        from_transformers(theirs, log=silent).save_pretrained(tmp_path / "model")
        options = ["--to-transformers"]
    change(tmp_path / "model")
    capsys.readouterr()
    assert run(tmp_path / "model", tmp_path / "new", *options) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ") and said.format(folder=tmp_path / "model") in error
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda weights: weights.pop("model.decoder.norm.weight"),
            "there is no weight for model.decoder.norm.weight",
        ),
        (lambda weights: weights.update({"model.more": torch.zeros(2)}), "there is no place for model.more"),
        (
            lambda weights: weights.update({"model.decoder.norm.bias": torch.zeros(3)}),
            "the size does not fit of model.decoder.norm.bias",
        ),
    ],
)
def test_models_of_ours_without_all_weights_are_refused(change, said, tmp_path, capsys):
    """Where one lacks, transformers would fill its place with random numbers, and both models compute the same."""
    from_transformers(build("gpt2")).save_pretrained(tmp_path / "ours")
    weights = load_file(tmp_path / "ours" / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "ours" / "model.safetensors", {"format": "pt"})
    capsys.readouterr()
    assert run(tmp_path / "ours", tmp_path / "new", "--to-transformers") == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_class_that_is_none_of_ours_is_refused(tmp_path, capsys):
    from_transformers(build("gpt2")).save_pretrained(tmp_path / "ours")
    for name in ("VanillaTransformerForNothing", "VanillaTransformerConfig"):
        configure(architectures=[name])(tmp_path / "ours")
        assert run(tmp_path / "ours", tmp_path / "new", "--to-transformers") == 2
        assert f"{name!r}, which its config.json names, is not a class of this package" in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 4, "num_return_sequences": 4},
        {"return_dict_in_generate": True, "output_scores": True},
        {"prompt_lookup_num_tokens": 3},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"dola_layers": "low"},
        {"stop_strings": ["."]},
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0},
        {"max_time": 1e-9},
    ],
    ids=lambda settings: next(reversed(settings)),
)
def test_other_ways_to_search_are_kept_and_not_in_the_way_of_the_check(settings, tmp_path):
    build("gpt2").save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    lines = []
    convert_folder(tmp_path / "theirs", tmp_path / "ours", log=lines.append)
    assert any("greedy: the same tokens; 4 beams: the same tokens" in line for line in lines)
    kept = json.loads((tmp_path / "ours" / "generation_config.json").read_text())
    assert {name: kept[name] for name in settings} == settings


def test_settings_of_generation_that_transformers_lacks_are_told(tmp_path):
    ours = from_transformers(build("marian"), log=silent)
    ours.generation_config.length_penalty = 0.6
    ours.generation_config.max_length_over_source = 50
    ours.generation_config.length_penalty_form = "gnmt"
    lines = []
    theirs = to_transformers(ours, log=lines.append)
    assert sorted(line.partition(" is left out")[0] for line in lines) == [
        "length_penalty_form='gnmt'",
        "max_length_over_source=50",
    ]
    assert theirs.generation_config.length_penalty == 0.6
    assert "gnmt" not in theirs.generation_config.to_json_string()
    assert ours.generation_config.max_length_over_source == 50
    check_parity(theirs, ours)


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_what_earlier_versions_saved_of_gpt2_is_left_out(prefix, tmp_path):
    theirs = build("gpt2")
    theirs.save_pretrained(tmp_path)
    weights = {
        name.replace("transformer.", prefix): t for name, t in load_file(tmp_path / "model.safetensors").items()
    }
    weights[f"{prefix}h.1.attn.bias"] = torch.ones(1, 1, 8, 8).tril()
    weights[f"{prefix}h.1.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    lines = []
    check_parity(theirs, from_transformers(tmp_path, log=lines.append))
    assert lines == ["transformer.h.1.attn.masked_bias: left out, the score of what is masked."]


@pytest.mark.parametrize("name", ["gpt2", "bert", "bart"])
def test_models_of_few_positions_are_compared(name):
    size = {"n_positions": 8} if name == "gpt2" else {"max_position_embeddings": 8}
    theirs = build(name, **size)
    check_parity(theirs, from_transformers(theirs, log=silent))


def test_folders_that_are_not_there_are_named(tmp_path, capsys, monkeypatch):
    (tmp_path / "empty").mkdir()
    for name, said in {
        tmp_path / "none": "is not there",
        "./none": "is not there",
        "a/b/c": "is not there",
        tmp_path / "empty": "holds no config.json",
    }.items():
        for options in ([], ["--to-transformers"]):
            assert run(name, tmp_path / "new", *options) == 2
            assert f"{said}; give the folder of a finished run or saved model" in capsys.readouterr().err


def test_the_converted_model_goes_where_a_link_leads_and_not_where_one_stands(tmp_path, capsys, monkeypatch):
    build("bert").save_pretrained(tmp_path / "theirs")
    (tmp_path / "room").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "room")
    assert run(tmp_path / "theirs", tmp_path / "link") == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "room" / "model.safetensors").is_file()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert run(tmp_path / "theirs", ".") == 0
    assert (tmp_path / "here" / "model.safetensors").is_file()
    capsys.readouterr()
    assert run(tmp_path / "theirs", ".") == 2
    assert "not empty" in capsys.readouterr().err


def test_the_tokenizer_of_the_target_side_goes_along(tmp_path):
    from_transformers(build("marian-separate", vocab_size=280, decoder_vocab_size=290)).save_pretrained(
        tmp_path / "ours"
    )
    for folder, size in (("", 280), ("target_tokenizer", 290)):
        texts = [f"{n} cats and {n * n} dogs" for n in range(100)]
        train_tokenizer(texts, size).save_pretrained(tmp_path / "ours" / folder)
    convert_folder(tmp_path / "ours", tmp_path / "theirs", to_transformers=True, log=no_log)
    for folder, size in (("", 280), ("target_tokenizer", 290)):
        assert len(AutoTokenizer.from_pretrained(tmp_path / "theirs" / folder)) == size


SENTENCES = {
    "en": [f"the cat number {n} sits on {n * 7} mats" for n in range(200)],
    "de": [f"die Katze Nummer {n} liegt auf {n * 7} Matten" for n in range(200)],
}


def fsmt_of_two_vocabularies(folder, as_many=False):
    """A model with its tokenizer, which reads English and writes German, with as many tokens or others."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    letters = sorted(
        {letter + end for lines in SENTENCES.values() for letter in "".join(lines) for end in ("", "</w>")}
    )
    tokens = {
        "src": [*special, *letters, "cat</w>", *["ca"] * as_many],
        "tgt": [*special, "Katze</w>", *reversed(letters), "ei"],
    }
    folder.mkdir()
    for side, words in tokens.items():
        (folder / f"{side}.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    merges = ["c a", "ca t</w>", "e i", "K a", "Ka t", "Kat z", "Katz e</w>"]
    (folder / "merges").write_text("".join(f"{merge} 1\n" for merge in merges))
    transformers.FSMTTokenizer(
        langs=["en", "de"],
        src_vocab_file=folder / "src.json",
        tgt_vocab_file=folder / "tgt.json",
        merges_file=folder / "merges",
    ).save_pretrained(folder)
    sizes = {"src_vocab_size": len(tokens["src"]), "tgt_vocab_size": len(tokens["tgt"])}
    model = build("fsmt", pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, **sizes)
    model.save_pretrained(folder)


def marian_of_two_vocabularies(folder, as_many=False):
    folder.mkdir()
    sizes = {}
    for language, lines in SENTENCES.items():
        trained = folder / language
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_prefix=str(trained),
            vocab_size=60 + (0 if as_many else len(sizes)),
            minloglevel=2,
        )
        pieces = sentencepiece.SentencePieceProcessor(model_file=f"{trained}.model")
        tokens = ["</s>", "<unk>", "<pad>", *(pieces.id_to_piece(n) for n in range(3, pieces.get_piece_size()))]
        trained.with_suffix(".json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
        sizes[language] = len(tokens)
    transformers.MarianTokenizer(
        source_spm=str(folder / "en.model"),
        target_spm=str(folder / "de.model"),
        vocab=str(folder / "en.json"),
        target_vocab_file=str(folder / "de.json"),
        separate_vocabs=True,
        source_lang="en",
        target_lang="de",
    ).save_pretrained(folder)
    model = build(
        "marian-separate",
        vocab_size=sizes["en"],
        decoder_vocab_size=sizes["de"],
        pad_token_id=2,
        eos_token_id=0,
        decoder_start_token_id=2,
    )
    model.save_pretrained(folder)


@pytest.mark.parametrize("make", [fsmt_of_two_vocabularies, marian_of_two_vocabularies])
def test_two_vocabularies_of_as_many_tokens_are_two(tmp_path, make):
    make(tmp_path / "theirs", as_many=True)
    convert_folder(tmp_path / "theirs", tmp_path / "ours", log=no_log)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    translator = TextGenerator.from_pretrained(tmp_path / "ours")
    config = translator.model.config
    assert config.vocab_size == config.target_vocab_size
    source, target = SENTENCES["en"][3], SENTENCES["de"][3]
    assert translator.tokenizer(source).input_ids == theirs(source).input_ids
    written = translator.target_tokenizer(text_target=target).input_ids
    assert theirs.decode(written, skip_special_tokens=True) == target
    convert_folder(tmp_path / "ours", tmp_path / "back", to_transformers=True, log=no_log)


@pytest.mark.parametrize("make", [fsmt_of_two_vocabularies, marian_of_two_vocabularies])
def test_a_tokenizer_with_two_vocabularies_becomes_one_for_each_side(server, python, tmp_path, make):
    make(tmp_path / "theirs")
    convert_folder(tmp_path / "theirs", tmp_path / "ours", log=no_log)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    translator = TextGenerator.from_pretrained(tmp_path / "ours")
    source, target = SENTENCES["en"][3], SENTENCES["de"][3]
    assert translator.tokenizer(source).input_ids == theirs(source).input_ids
    written = translator.target_tokenizer(text_target=target).input_ids
    assert theirs.decode(written, skip_special_tokens=True) == target
    assert len(translator.target_tokenizer) == translator.model.config.target_vocab_size

    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "theirs")
    options = {"max_new_tokens": 9, "num_beams": 2}
    expected = theirs.batch_decode(
        model.generate(**theirs(source, return_tensors="pt"), **options), skip_special_tokens=True
    )
    ((hypothesis,),) = translator.generate([source], **options)
    assert hypothesis.text == expected[0] != ""
    assert translator.target_tokenizer.convert_ids_to_tokens(written) == theirs.convert_ids_to_tokens(written)

    # all of it goes to the Hub, where it is found again, and beside the mean of checkpoints, and a run can start from it
    code = """if True:
        from vanilla_transformer.generation.text_generator import TextGenerator
        from vanilla_transformer.hub import push_folder
        push_folder("ours", "me/ours")
        translator = TextGenerator.from_pretrained("me/ours")
        print(translator.tokenizer(%r).input_ids, translator.target_tokenizer(text_target=%r).input_ids)
    """
    server.repositories.pop("me/ours", None)
    printed = python.run(code % (source, target), folder=tmp_path).splitlines()
    assert printed[-1] == f"{theirs(source).input_ids} {written}"
    files = {p.relative_to(tmp_path / "ours").as_posix() for p in (tmp_path / "ours").rglob("*") if p.is_file()}
    assert model_files(tmp_path / "ours").keys() == files
    average_checkpoints([tmp_path / "ours"] * 2, tmp_path / "mean")
    assert model_files(tmp_path / "mean").keys() == files
    values = recipe_values(tmp_path) | {"start_from": str(tmp_path / "mean"), "model": {}, "tokenizer": {}}
    task = Recipe.from_dict(values).new_task()
    task.prepare({}, None)
    assert task.separate and task.target_tokenizer(text_target=target).input_ids == written
    assert "target_tokenizer.batch_decode" in task.use("A text.")


def test_a_run_that_starts_from_a_model_of_transformers_is_told_to_convert_it(tmp_path):
    build("marian").save_pretrained(tmp_path / "theirs")
    values = recipe_values(tmp_path) | {"start_from": str(tmp_path / "theirs"), "model": {}, "tokenizer": {}}
    with pytest.raises(RecipeError, match=f"is a marian model.*vanilla-transformer convert {tmp_path}/theirs FOLDER"):
        Recipe.from_dict(values)


def test_a_folder_of_the_home_is_where_a_run_starts_and_what_is_explained(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    tiny_model("encoder-decoder").save_pretrained(tmp_path / "ours")
    values = recipe_values(tmp_path) | {"start_from": "~/ours", "model": {}, "tokenizer": {}}
    assert Recipe.from_dict(values).start_from == str(tmp_path / "ours")
    values = recipe_values(tmp_path) | {"output_dir": "~/run", "tokenizer": {"path": "~/ours"}}
    recipe = Recipe.from_dict(values)
    assert (recipe.output_dir, recipe.tokenizer.path) == (str(tmp_path / "run"), str(tmp_path / "ours"))
    with pytest.raises(SystemExit, match="0"):
        cli.main(["explain", "~/ours"])
    assert "13,960" in "".join(capsys.readouterr())


def test_the_home_of_nobody_is_not_there(tmp_path):
    values = recipe_values(tmp_path) | {"start_from": "~nobody-of-this-name/ours", "model": {}, "tokenizer": {}}
    for look in (
        lambda place: Recipe.from_dict(values),
        lambda place: convert_folder(place, tmp_path / "theirs", log=no_log),
        TextGenerator.from_pretrained,
        cli._named_config,
        existing_file,
        lambda place: load_hub(TextData(path=place)),
    ):
        with pytest.raises((RecipeError, OSError, ValueError), match="~nobody-of-this-name/ours"):
            look("~nobody-of-this-name/ours")
