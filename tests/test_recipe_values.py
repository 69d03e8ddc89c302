"""Values of recipes: read by the type of their field, bounded, and refused before work where they cannot be."""

import dataclasses
import time
from typing import get_type_hints

import pytest
import torch
import yaml
from transformers import AttentionInterface, GenerationConfig, Seq2SeqTrainingArguments
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from runs import recipe_values
from vanilla_transformer.recipes.bounds import RECIPE, TRAINING
from vanilla_transformer.recipes.checks import TRAINING_REFUSED, machine_memory
from vanilla_transformer.recipes.recipe import Recipe, RecipeError, field_type
from vanilla_transformer.utils.bounds import GENERATION
from vanilla_transformer.utils.schema import override_fields, read_values
from vanilla_transformer.utils.yaml_text import PlainScalar, coerce_scalars, dump_yaml, parse_yaml, scalar_types


@pytest.fixture
def values(tmp_path):
    return recipe_values(tmp_path)


def in_file(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# Types ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("5e-4", float, 5e-4),
        (".5", float, 0.5),
        ("1_000", int, 1000),
        ("010", int, 10),
        ("0x10", int, 16),
        ("1e5", int, 100_000),
        ("1e5", str, "1e5"),
        ("1e5", str | None, "1e5"),
        ("010", str, "010"),
        ("no", str | None, "no"),
        ("yes", str, "yes"),
        ("2024-01-01", str, "2024-01-01"),
        ("12:30", str, "12:30"),
        ("1:30", int, "1:30"),
        ("nan", str, "nan"),
        ("nan", float | str, "nan"),
        ("inf", float, float("inf")),
        ("-.inf", float, float("-inf")),
        ("yes", bool, True),
        ("Off", bool, False),
        ("no", bool | str, "no"),
        ("true", bool | str, True),
        ("null", str | None, None),
        ("~", int | None, None),
        ("", str | None, None),
        ("3", str | int | None, 3),
        ("true", int, True),
        ("1.5", int, 1.5),
        ("1", bool, 1),
        ("many", int, "many"),
        ("1e400", float, float("inf")),
        ("1" * 5000, int, float("inf")),
        ("5e-4", None, 5e-4),
        ("no", None, "no"),
        ("2024-01-01", None, "2024-01-01"),
    ],
)
def test_a_value_without_quotes_is_of_the_type_of_its_field(text, hint, value):
    found = coerce_scalars(PlainScalar(text), hint)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "text", ["5e-4", "no", "010", "null", "true", "1_000", "~", ".inf", "0x10", "", "a: b", "#x", "x"]
)
def test_text_survives_writing_and_reading_whatever_it_looks_like(text):
    written = dump_yaml({"text": text})
    assert coerce_scalars(parse_yaml(written)) == {"text": text} and yaml.safe_load(written) == {"text": text}


OVERRIDES = {
    "training.learning_rate": ("5e-4", 5e-4),
    "training.lr_scheduler_kwargs": ("{decay_share: 5e-1}", {"decay_share": 0.5}),
    "training.lr_scheduler_type": ("inverse_sqrt_decay", "inverse_sqrt_decay"),
    "training.save_total_limit": ("010", 10),
    "training.eval_strategy": ("no", "no"),
    "training.load_best_model_at_end": ("off", False),
    "model.dropout": ("1e-1", 0.1),
    "model.attention_bias": ("yes", True),
    "generation.length_penalty": ("6e-1", 0.6),
    "output_dir": ("1e5", "1e5"),
    "data.source_language": ("no", "no"),
    "data.license": ("2024-01-01", "2024-01-01"),
    "card.title": ("null and void", "null and void"),
    "card.limits": ("1:30", "1:30"),
    "card.description": ("a: b, c", "a: b, c"),
}


def found_at(recipe, name):
    value = recipe.to_dict()
    for part in name.split("."):
        value = value[part]
    return value


def test_values_are_the_same_in_a_file_and_on_the_command_line(values, tmp_path):
    settings = {name: text for name, (text, _) in OVERRIDES.items() if name != "card.description"}  # there a mapping
    on_the_command_line = Recipe.from_dict(override_fields(values, [f"{n}={t}" for n, (t, _) in OVERRIDES.items()]))
    for name, (_, value) in OVERRIDES.items():
        assert found_at(on_the_command_line, name) == value
    plain = override_fields(values, [f"{name}=HERE" for name in settings])
    text = dump_yaml(coerce_scalars(plain))
    lines = []
    left = {name.rpartition(".")[2]: text for name, text in settings.items()}
    for line in text.splitlines():
        key, _, value = line.partition(": ")
        lines.append(f"{key}: {left[key.strip()]}" if value == "HERE" else line)
    from_file = Recipe.load(in_file(tmp_path, "\n".join(lines)))
    for name in settings:
        assert found_at(from_file, name) == OVERRIDES[name][1], name


def test_text_of_the_command_line_is_not_cut(values):
    texts = [
        "corpus #2.en",
        "- a",
        "a: b",
        "*.en",
        "&x",
        "!tag",
        "%d",
        "@home",
        "[draft] title",
        "it's",
        '"quoted" title',
    ]
    for text in texts:
        assert Recipe.from_dict(override_fields(values, [f"card.description={text}"])).card.description == text
    assert (
        Recipe.from_dict(override_fields(values, ['card.description="in quotes: #"'])).card.description
        == "in quotes: #"
    )


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("training.learning_rate=5,0e-4", "must be a number, such as 0.0005 or 5e-4"),
        ("training.max_steps=ten", "must be a whole number, such as 1000"),
        ("tokenizer.shared=2", "must be true or false"),
        ("output_dir=null", "must be text (in quotes, where null is meant as a name)"),
        ("training.max_steps='5'", "training.max_steps='5' is of the wrong type: it must be a whole number"),
        ("data.train=[1", "data.train='[1' is not valid YAML at line 1"),
    ],
)
def test_the_sentence_names_the_right_form(values, override, sentence):
    with pytest.raises(RecipeError) as error:
        Recipe.from_dict(override_fields(values, [override]))
    assert sentence in str(error.value)


# Files ---------------------------------------------------------------------------------------------------------------

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (BOMB, "holds more than 100,000 values, its aliases followed, by line"),
        ("[" * 5000, "is nested more than 50 levels deep at line 1"),
        ("{a: " * 5000, "is nested more than 50 levels deep at line 1"),
        ("\n".join(" " * n + "a:" for n in range(500)), "is nested more than 50 levels deep at line 51"),
        (
            "".join(f"k{n}: &a{n} [[[[[[[[[[[*a{n - 1}]]]]]]]]]]]\n" if n else "k0: &a0 [1]\n" for n in range(9)),
            "levels deep",
        ),
        ("a: &a [*a]", "has the alias *a at line 1 within what it stands for"),
        ("a: *b", "has the alias *b at line 1, which no anchor &b stands before"),
        ("seed: 1\ntask: seq2seq\nseed: 2", "has the key 'seed' twice, at line 1 and line 3; leave one out"),
        ("data:\n  train: {path: a, path: b}", "has the key 'path' twice, at line 2 and line 2"),
        ("a: !!python/object:os.system x", "has the tag tag:yaml.org,2002:python/object:os.system at line 1"),
        ("a: 1\n---\nb: 2", "holds several documents"),
        ('output_dir: "\\ud83d"', "holds half a character (a lone surrogate, as of a cut emoji) at line 1"),
        ('"\\ud83d": 1', "holds half a character"),
        ('output_dir: "a\\0b"', "holds a NUL character at line 1"),
        ("[a]: 1", "has a key at line 1 that is not a name"),
        ("a: \x07", "is not valid YAML at line 1: special characters are not allowed"),
        ("- 1", "holds no recipe: it must be a mapping of fields to values"),
        ("a:\n\t- b", "is not valid YAML at line 2"),
    ],
)
def test_a_file_that_cannot_be_a_recipe_is_refused_in_one_sentence(tmp_path, text, sentence):
    with pytest.raises(RecipeError) as error:
        read_values(in_file(tmp_path, text))
    message = str(error.value)
    assert sentence in message and "recipe.yaml" in message
    assert "\n" not in message and len(message) < 400


def test_files_that_are_too_large_or_in_another_encoding_are_refused(tmp_path):
    with pytest.raises(RecipeError, match="is larger than 1 MiB"):
        read_values(in_file(tmp_path, "#" * (2 << 20)))
    (tmp_path / "latin.yaml").write_bytes(b"card: {title: gr\xfc\xdfe}")
    with pytest.raises(RecipeError, match="latin.yaml is not valid UTF-8"):
        read_values(tmp_path / "latin.yaml")


def test_anchors_aliases_and_merges_are_followed(tmp_path):
    text = "a: &a {x: 1, y: [2]}\nb: *a\nc: {<<: *a, x: 3}\nd: &text word\ne: *text\n"
    found = coerce_scalars(read_values(in_file(tmp_path, text)))
    assert found == yaml.safe_load(text)
    assert found["a"]["y"] is not found["b"]["y"]


@pytest.mark.parametrize(
    "override", ["output_dir=\udcff", "a" + ".a" * 5000 + "=1", "output_dir=a\0b", "data=" + "[" * 5000]
)
def test_overrides_that_no_field_can_have_are_refused(values, override):
    with pytest.raises(RecipeError) as error:
        Recipe.from_dict(override_fields(values, [override]))
    str(error.value).encode()
    assert len(str(error.value)) < 400


# Bounds --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("training.num_train_epochs=.inf", "training.num_train_epochs=inf must be at most 1,000,000; a run ends by"),
        ("training.num_train_epochs=-1", "training.num_train_epochs=-1 must not be negative."),
        ("training.max_steps=" + "1" + "0" * 30, "training.max_steps=1e+30 must be at most 1,000,000,000."),
        ("training.max_steps=-2", "training.max_steps=-2 must be at least -1."),
        ("training.dataloader_num_workers=99999", "training.dataloader_num_workers=99999 must be at most 256."),
        ("training.neftune_noise_alpha=-5", "training.neftune_noise_alpha=-5 must not be negative."),
        ("training.adam_beta2=1.5", "training.adam_beta2=1.5 must be below 1."),
        ("training.adam_beta1=1", "training.adam_beta1=1 must be below 1."),
        ("training.adam_epsilon=-1", "training.adam_epsilon=-1 must not be negative."),
        ("training.save_steps=0", "training.save_steps=0 must be above 0."),
        ("training.eval_steps=0", "training.eval_steps=0 must be above 0."),
        ("training.logging_steps=-1", "training.logging_steps=-1 must be above 0."),
        ("training.learning_rate=.inf", "training.learning_rate=inf must be at most 1,000."),
        ("training.warmup_steps=inf", "training.warmup_steps=inf must be at most 1,000,000,000."),
        ("training.weight_decay=-1", "training.weight_decay=-1 must not be negative."),
        ("training.max_grad_norm=-1", "training.max_grad_norm=-1 must not be negative."),
        ("training.save_total_limit=0", "training.save_total_limit=0 must be at least 1."),
        ("training.per_device_eval_batch_size=0", "training.per_device_eval_batch_size=0 must be at least 1."),
        ("generation.max_length=-4", "generation.max_length=-4 must be at least 1."),
        ("generation.max_new_tokens=0", "generation.max_new_tokens=0 must be at least 1."),
        ("generation.num_beams=1000000", "generation.num_beams=1000000 must be at most 10,000."),
        ("generation.temperature=0", "generation.temperature=0 must be above 0."),
        ("generation.length_penalty=1e308", "generation.length_penalty=1e+308 must be at most 100."),
        ("generation.top_p=1.5", "generation.top_p=1.5 must be at most 1."),
        ("generation.eos_token_id=-1", "generation.eos_token_id=-1 must not be negative."),
        ("tokenizer.min_frequency=-1", "tokenizer.min_frequency=-1 must not be negative."),
        ("tokenizer.vocab_size=1_000_000_000", "tokenizer.vocab_size=1000000000 must be at most 2,000,000."),
        ("batches.max_tokens=" + "9" * 20, "batches.max_tokens=1e+20 must be at most 1,000,000,000."),
        ("evaluation.num_beams=0", "evaluation.num_beams=0 must be at least 1."),
        ("seed=4294967296", "seed=4294967296 must be at most 4,294,967,295."),
    ],
)
def test_numbers_out_of_bounds_are_refused(values, override, sentence):
    with pytest.raises(RecipeError) as error:
        Recipe.from_dict(override_fields(values, [override]))
    assert str(error.value).startswith(sentence)


def test_every_number_of_a_recipe_has_bounds():
    """A field that a new transformers brings is not in the table, and this says so."""

    def is_number(hint):
        return bool(scalar_types(hint) & {int, float}) and bool not in scalar_types(hint)

    hints = get_type_hints(Seq2SeqTrainingArguments)
    assert set(TRAINING) == {name for name, hint in hints.items() if is_number(hint)} - set(TRAINING_REFUSED)
    assert set(GENERATION) - set(GenerationConfig().to_dict()) == {"max_length_over_source"}
    defaults = GenerationConfig._get_default_generation_params()
    assert {name for name, default in defaults.items() if type(default) in (int, float)} <= set(GENERATION)
    sections = {f.name: field_type((f.name,)) for f in dataclasses.fields(Recipe)}
    own = {
        f"{section}.{f.name}": field_type((section, f.name))
        for section, hint in sections.items()
        if dataclasses.is_dataclass(hint)
        for f in dataclasses.fields(hint)
    }
    numbers = {name for name, hint in {**sections, **own}.items() if hint and is_number(hint)}
    assert numbers == set(RECIPE)


def test_defaults_are_within_their_bounds():
    for f in dataclasses.fields(Seq2SeqTrainingArguments):
        if f.name in TRAINING and isinstance(f.default, (int, float)):
            fits = TRAINING[f.name].refusal(f.default) is None
            assert fits, f.name
    for name, default in GenerationConfig._get_default_generation_params().items():
        if type(default) in (int, float):
            assert GENERATION[name].refusal(default) is None, name


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.hidden_size=1_000_000_000"],
        ["model.intermediate_size=1e15"],
        ["model.num_hidden_layers=1_000_000_000_000"],
        ["tokenizer.vocab_size=2_000_000", "model.hidden_size=1_000_000"],
    ],
)
def test_a_model_that_no_memory_can_hold_is_refused_before_it_is_built(values, overrides):
    started = time.process_time()
    with pytest.raises(
        RecipeError, match=r"model: [\d,]+ parameters need [\d,]+ GB for weights.*this machine has [\d,]+ GB"
    ):
        Recipe.from_dict(override_fields(values, overrides))
    assert time.process_time() - started < 5
    assert machine_memory() > 2**28


# Attention -----------------------------------------------------------------------------------------------------------


def test_a_recipe_can_choose_its_attention_backend(values):
    calls = []

    def counted(*args, **kwargs):
        calls.append(1)
        return sdpa_attention_forward(*args, **kwargs)

    AttentionInterface.register("counted_sdpa", counted)
    recipe = Recipe.from_dict(override_fields(values, ["model.attn_implementation=counted_sdpa"]))
    assert recipe.config()._attn_implementation == "counted_sdpa"
    model = recipe.new_task().head(recipe.config(vocab_size=300))
    with torch.no_grad():
        model(input_ids=torch.tensor([[5, 6]]), labels=torch.tensor([[7, 2]]))
    assert calls
    eager = Recipe.from_dict(override_fields(values, ["model.attn_implementation=eager"]))
    assert eager.new_task().head(eager.config(vocab_size=300)).config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("model.attn_implementation=eagr", "did you mean 'eager'?"),
        ("model.attn_implementation=flash_attention_2", "cannot be used here: "),
        ("model.attn_implementation=someone/kernels", "is not an attention backend that is registered"),
        ("model.attn_implementation=eager position_encoding", "is not an attention backend"),
        ("model.qqqqqq=1", "unknown field model.qqqqqq; no field has a name like it."),
    ],
)
def test_a_backend_or_field_that_nobody_knows_is_refused_without_a_long_list(values, override, sentence):
    with pytest.raises(RecipeError) as error:
        Recipe.from_dict(override_fields(values, [override]))
    assert sentence in str(error.value) and len(str(error.value)) < 600
