"""Values of recipes: read by the type of their field, bounded, and refused before work where they cannot be."""

import pytest
import yaml

from runs import recipe_values
from vanilla_transformer.training.fields import override_fields, read_values
from vanilla_transformer.training.recipe import Recipe, RecipeError
from vanilla_transformer.training.yaml_text import PlainScalar, coerce_scalars, dump_yaml, parse_yaml


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
