"""Presets of published models: their sizes and fields against transformers' own classes, and what is said of each choice."""

import re
from collections.abc import Hashable
from dataclasses import fields
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
import torch
import transformers

from runs import recipe_values
from tiny import LANGUAGE_MODELS, model_inputs
from vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.explanations import (
    ANY,
    EXPLANATIONS,
    SIZES,
    SPECIAL_TOKENS,
    deviations,
    explanation,
    own_fields,
)
from vanilla_transformer.presets import PRESETS
from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.tokenization import train_tokenizer

DOCUMENT = Path(__file__).parents[1] / "vanilla_transformer" / "README.md"


def translator(width, inner, layers, heads, **others):
    """Arguments of the configuration of Marian and its kind."""
    sides = {"ffn_dim": inner, "layers": layers, "attention_heads": heads}
    both = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sides.items()}
    return {"d_model": width, **both, **others}


def bert(**others):
    return {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        **others,
    }


def gpt2(width, layers, heads):
    return {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
        "n_inner": None,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    }


BART = {
    "vocab_size": 50265,
    "max_position_embeddings": 1024,
    "activation_function": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
    "init_std": 0.02,
    "scale_embedding": False,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
T5 = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}

# Family, and what the released config.json of each has, written down apart from the presets, so that a slip is noticed.
RELEASED = {
    "opus-mt": (
        "MarianMTModel",
        translator(
            *(512, 2048, 6, 8),
            vocab_size=58101,
            max_position_embeddings=512,
            activation_function="swish",
            dropout=0.1,
            attention_dropout=0.0,
            activation_dropout=0.0,
            init_std=0.02,
            scale_embedding=True,
            pad_token_id=58100,
            bos_token_id=0,
            eos_token_id=0,
            decoder_start_token_id=58100,
        ),
    ),
    "bart-base": ("BartForConditionalGeneration", translator(768, 3072, 6, 12, **BART)),
    "bart-large": ("BartForConditionalGeneration", translator(1024, 4096, 12, 16, **BART)),
    "t5-small": ("T5ForConditionalGeneration", {**T5, "d_ff": 2048, "num_layers": 6, "num_heads": 8}),
    "t5-v1.1-small": (
        "T5ForConditionalGeneration",
        {
            **T5,
            "d_ff": 1024,
            "num_layers": 8,
            "num_heads": 6,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
        },
    ),
    "bert-base": ("BertForMaskedLM", bert()),
    "bert-large": (
        "BertForMaskedLM",
        bert(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
    ),
    "roberta-base": (
        "RobertaForMaskedLM",
        bert(
            vocab_size=50265,
            max_position_embeddings=514,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            pad_token_id=1,
            bos_token_id=0,
            eos_token_id=2,
        ),
    ),
    "albert-base": (
        "AlbertForMaskedLM",
        bert(
            vocab_size=30000,
            embedding_size=128,
            hidden_act="gelu_new",
            hidden_dropout_prob=0,
            attention_probs_dropout_prob=0,
            num_hidden_groups=1,
            inner_group_num=1,
            bos_token_id=2,
            eos_token_id=3,
        ),
    ),
    "electra-small": (
        "ElectraForMaskedLM",
        bert(hidden_size=256, num_attention_heads=4, intermediate_size=1024, embedding_size=128),
    ),
    "gpt2": ("GPT2LMHeadModel", gpt2(768, 12, 12)),
    "gpt2-medium": ("GPT2LMHeadModel", gpt2(1024, 24, 16)),
    "gpt2-large": ("GPT2LMHeadModel", gpt2(1280, 36, 20)),
    "gpt2-xl": ("GPT2LMHeadModel", gpt2(1600, 48, 25)),
    "llama-2-7b": (
        "LlamaForCausalLM",
        {
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "initializer_range": 0.02,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
        },
    ),
    "llama-3-8b": (
        "LlamaForCausalLM",
        {
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "hidden_act": "silu",
            "max_position_embeddings": 8192,
            "initializer_range": 0.02,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
            "tie_word_embeddings": False,
        },
    ),
    "qwen2-0.5b": (
        "Qwen2ForCausalLM",
        {
            "vocab_size": 151936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "initializer_range": 0.02,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "sliding_window": 131072,
            "use_sliding_window": False,
            "max_window_layers": 24,
            "attention_dropout": 0.0,
            "bos_token_id": 151643,
            "eos_token_id": 151643,
            "tie_word_embeddings": True,
        },
    ),
}

# The others were never released for transformers; a class of the same build stands in for their number of parameters.
OF_THE_SAME_BUILD = {
    "transformer-tiny": ("MarianMTModel", translator(128, 256, 4, 4, vocab_size=10000, pad_token_id=0)),
    "transformer-base": ("MarianMTModel", translator(512, 2048, 6, 8, vocab_size=37000, pad_token_id=0)),
    "transformer-big": ("MarianMTModel", translator(1024, 4096, 6, 16, vocab_size=37000, pad_token_id=0)),
    "t2t-v3": ("PegasusForConditionalGeneration", translator(512, 2048, 6, 8, vocab_size=37000)),
    "fairseq-wmt": (
        "FSMTForConditionalGeneration",
        translator(512, 2048, 6, 8, src_vocab_size=32768, tgt_vocab_size=32768, tie_word_embeddings=True),
    ),
}

# What transformers' class holds beside the published model.
BESIDE = {
    # tensor2tensor's attention has no biases, Pegasus' has
    "t2t-v3": r"_attn\.\w+_proj\.bias$",
    # sines, which transformers' class does not mark as fixed
    "fairseq-wmt": r"embed_positions\.weight$",
    # the released file has one table of embeddings and the output's; transformers' class, which ties either all or none of
    # them unless weights say otherwise, is built with none tied
    "t5-v1.1-small": r"(encoder|decoder)\.embed_tokens\.weight$",
}

PUBLISHED = {
    "transformer-base": 63_082_496,
    "bart-large": 406_291_456,
    "t5-small": 60_506_624,
    "t5-v1.1-small": 76_961_152,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "roberta-base": 124_697_433,
    "albert-base": 11_221_680,
    "electra-small": 13_546_682,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "qwen2-0.5b": 494_032_768,
}

# Their names of a field, by ours.
SAID_ALIKE = {
    "hidden_size": ["hidden_size"],
    "num_hidden_layers": ["num_hidden_layers"],
    "num_decoder_layers": ["decoder_layers", "num_decoder_layers"],
    "num_attention_heads": ["num_attention_heads"],
    "num_key_value_heads": ["num_key_value_heads"],
    "head_dim": ["head_dim"],
    "intermediate_size": ["intermediate_size", "encoder_ffn_dim", "d_ff"],
    "embedding_size": ["embedding_size"],
    "type_vocab_size": ["type_vocab_size"],
    "vocab_size": ["vocab_size"],
    "hidden_act": ["hidden_act", "activation_function", "dense_act_fn"],
    "gated_feed_forward": ["is_gated_act"],
    "norm_eps": ["layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps"],
    "relative_attention_num_buckets": ["relative_attention_num_buckets"],
    "relative_attention_max_distance": ["relative_attention_max_distance"],
    "scale_embedding": ["scale_embedding"],
    "dropout": ["dropout", "dropout_rate", "hidden_dropout_prob", "resid_pdrop", "embd_pdrop"],
    "attention_dropout": ["attention_dropout", "attention_probs_dropout_prob", "attn_pdrop"],
    "activation_dropout": ["activation_dropout"],
    "attention_bias": ["attention_bias"],
    "mlp_bias": ["mlp_bias"],
    "sliding_window": ["sliding_window"],
    "initializer_range": ["initializer_range", "init_std"],
    "pad_token_id": ["pad_token_id"],
    "bos_token_id": ["bos_token_id"],
    "eos_token_id": ["eos_token_id"],
    "decoder_start_token_id": ["decoder_start_token_id"],
    "is_encoder_decoder": ["is_encoder_decoder"],
}


def transformers_config(name):
    class_name, arguments = {**RELEASED, **OF_THE_SAME_BUILD}[name]
    model_class = getattr(transformers, class_name)
    config = model_class.config_class(**arguments)
    if name == "t5-v1.1-small":
        config.tie_word_embeddings = False  # T5Config sets it back
    return model_class, config


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_are_those_of_transformers_own_class(name):
    model_class, config = transformers_config(name)
    with torch.device("meta"):
        model = model_class(config)
    beside = re.compile(BESIDE.get(name, "$^"))
    count = sum(p.numel() for n, p in model.named_parameters() if p.requires_grad and not beside.search(n))
    assert VanillaTransformerConfig.from_preset(name).num_parameters() == count == PUBLISHED.get(name, count)


@pytest.mark.parametrize("name", RELEASED)
def test_fields_are_those_of_the_released_configuration(name):
    model_class, theirs = transformers_config(name)
    ours = VanillaTransformerConfig.from_preset(name)
    compared = set()
    for our_name, their_names in SAID_ALIKE.items():
        for their_name in their_names:
            if hasattr(theirs, their_name):
                assert getattr(ours, our_name) == getattr(theirs, their_name), (our_name, their_name)
                compared.add(our_name)
    assert len(compared) > 10
    # of what their configurations have no field for, the module knows
    with torch.device("meta"):
        modules = list(model_class(theirs).modules())
    if ours.norm_type == "layernorm":
        assert {m.eps for m in modules if isinstance(m, torch.nn.LayerNorm)} == {ours.norm_eps}
    tables = {m.num_embeddings for m in modules if isinstance(m, torch.nn.Embedding)}
    if ours.position_encoding == "learned":
        assert ours.max_position_embeddings + ours.position_offset in tables
    elif ours.position_encoding == "rope":
        assert theirs.rope_parameters == {"rope_type": "default", "rope_theta": ours.rope_theta}
        assert theirs.max_position_embeddings == ours.max_position_embeddings


@pytest.mark.parametrize("name", PRESETS)
def test_the_source_of_a_preset_is_a_paper_and_what_was_released(name):
    source = PRESETS[name].source
    assert re.match(r"[A-Z][\w-]+ .*\b20\d\d\b", source), source
    assert (name in RELEASED) == bool(re.search(r"; [\w-]+/[\w.-]+", source)), source


PARTS = {
    "embeddings": r"\.embed_(tokens|token_types|projection)\.",
    "positions": r"\.(embed_positions|relative_bias)\.",
    "attention": r"\.(self|cross)_attn\.",
    "feed-forward": r"\.feed_forward\.",
    "norms": r"\.(embed_norm|(self_attn|cross_attn|feed_forward)_norm|(encoder|decoder)\.norm)\.",
    "output": r"^(lm_head|output_transform)\.",
}


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_of_each_part_are_those_of_the_model(name):
    config = VanillaTransformerConfig.from_preset(name)
    with torch.device("meta"):
        model = LANGUAGE_MODELS[config.architecture](config)
    counts = dict.fromkeys(PARTS, 0)
    for parameter_name, parameter in model.named_parameters():
        (part,) = [part for part, pattern in PARTS.items() if re.search(pattern, parameter_name)]
        counts[part] += parameter.numel()
    assert counts == config.parameters_by_part()
    assert sum(counts.values()) == config.num_parameters()


@pytest.mark.parametrize("name", PRESETS)
def test_a_small_model_of_a_preset_computes_trains_and_comes_back(name, tmp_path):
    """With the preset's own vocabulary and special tokens."""
    preset = VanillaTransformerConfig.from_preset(name)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
    small["max_position_embeddings"] = 32
    if preset.num_key_value_heads != preset.num_attention_heads:
        small["num_key_value_heads"] = 2
    if preset.embedding_size is not None:
        small["embedding_size"] = 8
    torch.manual_seed(0)
    config = VanillaTransformerConfig.from_preset(name, **small)
    model = LANGUAGE_MODELS[config.architecture](config)
    inputs = model_inputs(model, batch=2, length=7)
    loss = model(**inputs, labels=inputs.get("decoder_input_ids", inputs["input_ids"])).loss
    loss.backward()
    assert torch.isfinite(loss) and all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert {n for n, p in model.named_parameters() if p.grad is None} == set()
    model.eval().save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, again(**inputs).logits)
    assert again.config.explain() == config.explain()


@pytest.mark.parametrize(
    ("preset", "start"), [("opus-mt", "pad"), ("fairseq-wmt", "eos"), ("transformer-tiny", "bos")]
)
def test_a_recipe_starts_the_decoder_with_the_token_that_the_preset_means(preset, start, tmp_path):
    """Whose id follows the tokenizer, as all special tokens' do."""
    values = recipe_values(tmp_path)
    values["model"]["preset"] = preset
    recipe = Recipe.from_dict(values)
    task = recipe.new_task()
    task.tokenizer = train_tokenizer(["red green blue"], 261)
    task.target_tokenizer = task.tokenizer
    config = recipe.config(**task.config_fields())
    assert config.vocab_size == 261
    assert config.start_token_id == getattr(task.tokenizer, f"{start}_token_id")


def test_the_readme_of_the_model_lists_all_presets_with_their_parameters():
    section = DOCUMENT.read_text(encoding="utf-8").partition("## Presets")[2].partition("\n## ")[0]
    for name in PRESETS:
        count = VanillaTransformerConfig.from_preset(name).num_parameters()
        assert re.search(rf"`{re.escape(name)}` {count / 1e6:,.1f}\b", section), name


def test_the_readme_of_the_model_names_every_choice():
    section = DOCUMENT.read_text(encoding="utf-8").partition("## Choices")[2].partition("\n## ")[0]
    assert {*EXPLANATIONS} <= set(re.findall(r"`(\w+)`", section))


# -------------------------------------------------------------------------------------------------------- explanations


def test_the_default_is_said_to_be_the_papers():
    said = VanillaTransformerConfig().explain()
    assert "to the letter" in said and "63,082,496" in said and "\n" not in said


def test_an_explanation_to_the_letter():
    said = VanillaTransformerConfig(norm_bias=False, vocab_size=100, max_position_embeddings=50).explain()
    assert said.splitlines() == [
        '44,174,336 parameters. What differs from the base model of "Attention Is All You Need":',
        "norm_bias = False: norms scale and add nothing [nanoGPT (bias=False), MPT]",
        "sizes, the base model's in brackets: vocab_size = 100 (37000), max_position_embeddings = 50 (1024)",
    ]
    assert all(line in explanation.__doc__ for line in said.splitlines())


def test_every_field_is_explained_once():
    explained = [*EXPLANATIONS, *SIZES, *SPECIAL_TOKENS]
    assert sorted(explained) == sorted(own_fields(VanillaTransformerConfig()))
    declared = set(VanillaTransformerConfig.__annotations__) - {"model_type", "attribute_map", "is_decoder"}
    # of pipelines and of transformers, not of the architecture
    others = {"keys_to_ignore_at_inference", "task_specific_params"}
    assert {name for name in declared if not name.startswith("_")} - set(explained) == others


def values_of(kind):
    """The values that a type lists, or ANY of those it does not."""
    if get_origin(kind) is Literal:
        return set(get_args(kind))
    if kind is bool:
        return {True, False}
    if get_args(kind):
        return set().union(*(values_of(part) for part in get_args(kind) if part is not type(None)))
    return {ANY}


HINTS = VanillaTransformerConfig.__annotations__
DEFAULTS = {field.name: field.default for field in fields(VanillaTransformerConfig)}


@pytest.mark.parametrize("name", EXPLANATIONS)
def test_every_value_of_a_choice_is_explained(name):
    wanted = {value for value in values_of(HINTS[name]) if value is ANY or value != DEFAULTS[name]}
    assert wanted, name
    assert wanted <= set(EXPLANATIONS[name]), name
    if ANY not in wanted:
        assert wanted == set(EXPLANATIONS[name]), name


# a value for those that have no list, and what each needs beside it
EXAMPLES = {
    "value_head_dim": 32,
    "rotary_scaling": {"rope_type": "linear", "factor": 2.0},
    "partial_rotary_factor": 0.5,
    "qk_norm": "rmsnorm",
    "layer_types": ["full_attention"] * 6,
    "target_vocab_size": 100,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "hidden_act": "tanh",
    "norm_eps": 1e-3,
    "position_offset": 5,
    "rope_theta": 5000.0,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 64,
    "embedding_size": 64,
    "type_vocab_size": 3,
    "output_scale": 0.5,
    "dropout": 0.2,
    "attention_dropout": 0.2,
    "activation_dropout": 0.2,
    "attention_scale": 0.5,
    "sliding_window": 7,
    "label_smoothing": 0.1,
    "initializer_range": 0.01,
}
BESIDE_IT = {
    ("final_norm", False): {"norm_position": "pre"},
    ("rope_theta", 5000.0): {"position_encoding": "rope"},
    ("relative_attention_num_buckets", 16): {"position_encoding": "relative"},
    ("relative_attention_max_distance", 64): {"position_encoding": "relative"},
    ("embedding_size", 64): {"output_transform": True},
    ("type_vocab_size", 1): {"architecture": "encoder-only"},
    ("type_vocab_size", 3): {"architecture": "encoder-only"},
    ("share_encoder_decoder_embeddings", True): {"tie_word_embeddings": False},
    ("label_smoothing_form", "others"): {"label_smoothing": 0.1},
    ("initializer_range", 0.01): {"init_scheme": "normal"},
    ("attention_output_bias", True): {"attention_bias": False},
}


@pytest.mark.parametrize(
    ("name", "value"), [(n, EXAMPLES[n] if v is ANY else v) for n in EXPLANATIONS for v in EXPLANATIONS[n]]
)
def test_a_deviation_has_a_line_of_its_own(name, value):
    is_rotary = name in ("rotary_scaling", "partial_rotary_factor")
    beside = (
        {"position_encoding": "rope"}
        if is_rotary
        else BESIDE_IT.get((name, str(value) if name == "layer_types" else value), {})
    )
    config = VanillaTransformerConfig(**{name: value, **beside})
    (line,) = [line for line in config.explain().splitlines() if line.startswith(f"{name} = ")]
    told = (EXPLANATIONS[name].get(value) if isinstance(value, Hashable) else None) or EXPLANATIONS[name][ANY]
    assert (
        line.startswith(f"{name} = {value!r}: ")
        and line.endswith(f" [{told.origin}]")
        and "{" not in line.replace(repr(value), "")
    )


@pytest.mark.parametrize(
    "said_aloud",
    [
        {"decoder_layers": 6},
        {"num_key_value_heads": 8},
        {"head_dim": 64},
        {"final_norm": False},
        {"embedding_size": 512},
        {"share_encoder_decoder_embeddings": True},
        {"attention_output_bias": True},
        {"attention_scale": 64**-0.5},
        {"decoder_start_token_id": 1},
    ],
)
def test_what_follows_anyway_is_no_deviation(said_aloud):
    assert deviations(VanillaTransformerConfig(**said_aloud)) == {}


def test_what_has_no_effect_is_said_to_have_none():
    said = VanillaTransformerConfig(rope_theta=5000.0, initializer_range=0.5, architecture="decoder-only").explain()
    assert said.splitlines()[-1] == (
        "without effect here, the base model's in brackets: rope_theta = 5000.0 (10000.0), initializer_range = 0.5 (0.02)"
    )
    assert "rope_theta =" not in "\n".join(said.splitlines()[:-1])
    said = VanillaTransformerConfig(architecture="decoder-only", share_encoder_decoder_embeddings=False).explain()
    assert said.splitlines()[-1].endswith("share_encoder_decoder_embeddings = False (None)")
