"""Cards of runs and of the recorded ones: what they say, and whether the Hub takes them, by its client's own validation."""

import json
import math
import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, ModelCardData, constants, metadata_load
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

from hub_server import HubServer
from runs import equal_weights, quiet, recipe_values, run, weights
from test_tasks import recipe
from vanilla_transformer.recipes.licenses import LICENSES
from vanilla_transformer.recipes.recipe import Recipe, RecipeError
from vanilla_transformer.runs import model_card
from vanilla_transformer.runs.emissions import estimate_emissions
from vanilla_transformer.runs.run import run_recipe
from vanilla_transformer.tasks import TASKS
from vanilla_transformer.utils.names import is_hub_id
from vanilla_transformer.utils.public import (
    base_name,
    card_of_repository,
    escape_markdown,
    public_values,
    without_nulls,
)
from vanilla_transformer.utils.schema import override_fields

CARDS = sorted(
    set((Path(__file__).parents[1] / "model_cards").glob("*.md"))
    - {Path(__file__).parents[1] / "model_cards" / "README.md"}
)
SECTIONS = ["Intended use", "Use", "Scores", "Data", "Training", "Limitations", "Environmental impact", "Licence"]
QUICK = ["training.max_steps=2", "averaging.last=0", "training.load_best_model_at_end=false"]
QUICK += ["training.eval_strategy=no", "training.save_strategy=no"]
OPTIONS = {
    "seq2seq": [
        "card.license=apache-2.0",
        "card.pipeline_tag=summarization",
        "data.license=CC BY 4.0 | texts of nobody",
        "tokenizer.lowercase=true",
    ],
    "causal-lm": ["data.block_size=8", "card.watts=5", "card.grams_co2_per_kwh=300", "card.location='Oslo, Norway'"],
    "masked-lm": ["card.license=other", "card.license_name=mine-1.0", "card.license_link=LICENSE"],
    "sequence-classification": [
        "card.intended_use=Sorting sentences.",
        "card.out_of_scope=Poems.",
        "card.limits=Rhymes.",
    ],
    "token-classification": ["data.test={}"],
}


@pytest.fixture
def validate(monkeypatch):
    """The client's own `ModelCard.validate`, asking a Hub of this machine."""
    with HubServer() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield lambda card: card.validate()
        assert {request[1] for request in hub.requests} <= {"/api/validate-yaml"}


def values_of(folder, task, overrides=()):
    values = recipe_values(folder) if task == "seq2seq" else recipe(folder, task)
    return override_fields(values, [*QUICK, *OPTIONS[task], *overrides])


@pytest.fixture(scope="module", params=[name for name in TASKS if name != "constituency-parsing"])  # in test_parsing
def finished(request, tmp_path_factory):
    """A short run of each task: its folder and its recipe."""
    values = values_of(tmp_path_factory.mktemp(request.param) / "data", request.param)
    return run_recipe(Recipe.from_dict(values), log=quiet).folder, values


def comes_back(card):
    """The metadata of a card, which must survive whatever the client does with it."""
    data = card.data.to_dict()
    assert ModelCardData(**data).to_dict() == data
    name, results = model_index_to_eval_results(data["model-index"])
    assert eval_results_to_model_index(name, results) == data["model-index"]
    return data


# Cards of runs -------------------------------------------------------------------------------------------------------


def test_the_card_of_every_task_is_valid_and_says_what_metrics_json_says(finished, validate):
    folder, values = finished
    card, task = ModelCard.load(folder / "README.md"), TASKS[values.get("task", "seq2seq")]
    tag = "summarization" if task.name == "seq2seq" else task.pipeline_tag
    metrics = json.loads((folder / "metrics.json").read_text())
    validate(card)
    data = comes_back(card)
    assert data == metadata_load(folder / "README.md")
    assert data["library_name"] == "transformers" and data["pipeline_tag"] == tag
    assert data["language"] == ["en"] and "trained-from-scratch" in data["tags"]

    name = "unseen" if metrics["test"] else "validation"
    scores = metrics["test"].get(name) or metrics["model"]["validation"][metrics["model"]["weights"]]
    assert {(r.dataset_name, r.dataset_type, r.task_type, r.verified) for r in card.data.eval_results} == {
        (name, name, tag, None)
    }
    split = "test" if metrics["test"] else "validation"
    assert {r.dataset_split for r in card.data.eval_results} == {split}
    report = metrics["data"][name]
    for result in card.data.eval_results:
        key = {"f1": "macro_f1" if "macro_f1" in scores else "f1"}.get(result.metric_type, result.metric_type)
        assert result.metric_value == scores[key]
        assert result.dataset_args == {"sha256": report["sha256"], task.noun: report["kept"]}
        if f"{key}_signature" in scores:
            assert scores[f"{key}_signature"] in result.metric_name and result.metric_args["lowercase"] is True
    assert data["metrics"] == [result.metric_type for result in card.data.eval_results]

    text = card.text
    assert re.findall("^## (.*)$", text, flags=re.M) == SECTIONS
    for part in metrics["data"].values():
        assert f"{part['kept']} of {part['read']} | `{part['sha256']}`" in text
    assert f"{metrics['training']['parameters']:,} parameters" in text
    assert f"in {metrics['training']['minutes']} minutes" in text
    assert f"About {metrics['energy']['kilowatt_hours']:.2g} kWh, estimated and not measured" in text
    assert "![Loss" in text and (folder / "curves.png").is_file()
    assert "{{" not in text and "{%" not in text and "None" not in text.replace("None was given", "")
    shown = text.partition("yaml\n")[2].partition("```")[0]
    recipe = without_nulls(public_values(yaml.safe_load((folder / "recipe.yaml").read_text())))
    adapter = recipe.pop("adapter")  # which no task here has, so that the card leaves the section out
    assert "kind" not in adapter
    assert yaml.safe_load(shown) == recipe
    assert str(folder.parent) not in text and "null" not in shown


def test_what_the_recipe_says_of_the_card_stands_in_it(finished):
    folder, values = finished
    card, task = ModelCard.load(folder / "README.md"), values.get("task", "seq2seq")
    data, text = card.data.to_dict(), card.text
    energy = json.loads((folder / "metrics.json").read_text())["energy"]
    license_of_data = text.partition("Licence of the data: ")[2].partition("\n")[0]
    if task == "seq2seq":
        assert data["license"] == "apache-2.0" and "Of the weights: `apache-2.0`." in text
        assert license_of_data == "CC BY 4.0 | texts of nobody"
    else:
        assert license_of_data.startswith("not stated in the recipe")
    if task == "masked-lm":
        assert (data["license"], data["license_name"], data["license_link"]) == ("other", "mine-1.0", "LICENSE")
        assert "Of the weights: mine-1.0, LICENSE." in text
    if task == "token-classification":
        assert "license" not in data and "None was given for the weights" in text
    if task == "sequence-classification":
        assert "- For: Sorting sentences." in text and "- Not for: Poems." in text and "\n\nRhymes.\n\n" in text
    if task == "causal-lm":
        assert energy["watts"] == 5 and not energy["watts_assumed"] and energy["grams_co2_per_kwh"] == 300
        emissions = data["co2_eq_emissions"]
        assert emissions["emissions"] == energy["grams_co2"] and emissions["training_type"] == "from scratch"
        assert emissions["geographical_location"] == "Oslo, Norway" and emissions["source"].startswith("estimate")
        assert "At 300 g of CO2 equivalent a kWh (Oslo, Norway)" in text and "(by the recipe, `card.watts`)" in text
    else:
        assert "co2_eq_emissions" not in data and "Emissions are not estimated" in text
        assert energy["watts"] == 12 and "taken to draw 12 W\n(which is what Green Algorithms" in text


def test_the_lines_of_the_card_run_with_the_package_and_with_trust_in_its_code(finished, snippets):
    """Reported in huggingface/transformers#43256 and #43827."""
    folder, _ = finished
    text = ModelCard.load(folder / "README.md").text
    code = text.partition("```python\n")[2].partition("```")[0]
    assert len([line for line in code.splitlines() if line and not line.startswith("#")]) <= 6
    first, _, others = code.partition("\n")
    assert first.startswith("import vanilla_transformer")
    trusted = re.sub(r'(from_pretrained\("\.")|(model=".")', r"\1\2, trust_remote_code=True", others)
    assert trusted.count("trust_remote_code") == others.count('"."')
    assert "give `trust_remote_code=True` wherever the model is named" in " ".join(text.split())
    there = f"os.chdir({str(folder)!r})\n"
    assert snippets(there + code)
    assert snippets(there + trusted, package=False)


def test_the_example_of_the_card_has_the_output_that_its_lines_give(finished, snippets):
    """Where it is not drawn by chance; and five texts are shown with what was made of them."""
    folder, values = finished
    task, text = values.get("task", "seq2seq"), ModelCard.load(folder / "README.md").text
    code = text.partition("```python\n")[2].partition("```")[0]
    printed = "\n".join(line[2:] for line in code.splitlines() if line.startswith("# "))
    examples = json.loads((folder / "metrics.json").read_text())["examples"]
    assert printed and 3 <= len(examples) <= 5
    shown = min(filter(None, (" ".join(example["source"].split()) for example in examples)), key=len)
    assert repr(shown) in code
    for example in examples:
        assert " | ".join(escape_markdown(example[name]) for name in ("source", "reference", "output")) in text
    if task != "causal-lm":
        assert snippets(f"os.chdir({str(folder)!r})\n" + code).strip() == printed


def test_outputs_stand_beside_the_scores_one_line_for_each_text(finished):
    folder, values = finished
    metrics = json.loads((folder / "metrics.json").read_text())
    files = {path.stem: path.read_text().splitlines() for path in (folder / "outputs").glob("*.txt")}
    if values.get("task", "seq2seq") in ("causal-lm", "masked-lm"):
        assert not files  # which are scored by probabilities and not by what they write
        return
    assert files.keys() == {"validation", *metrics["test"]}
    for name, lines in files.items():
        assert len(lines) == metrics["data"][name]["kept"]
    assert {example["output"] for example in metrics["examples"]} <= set(
        files[min(files, key=lambda n: n == "validation")]
    )


@pytest.mark.parametrize(
    ("given", "escaped"),
    [
        ("# a\n# b", "# a # b"),
        ("test_2016_flickr", "test_2016_flickr"),
        ("_a_ *b* [c](d) <e> | ~f~ `g` $h$", "\\_a\\_ \\*b\\* \\[c\\](d) \\<e> \\| \\~f\\~ \\`g\\` \\$h\\$"),
    ],
)
def test_what_people_wrote_is_no_markdown(given, escaped):
    assert escape_markdown(given) == escaped


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/home/me/a/train.en -> /home/me/a/train.de", "train.en -> train.de"),
        ("../shared/x.en, ../shared/y.en -> z.de", "x.en, y.en -> z.de"),
        (r"C:\data\train.tsv", "train.tsv"),
        ("me/pairs", "me/pairs"),
        ("data/train.en", "train.en"),
        ("~/models/base", "base"),
        ("texts", "texts"),
    ],
)
def test_files_are_named_without_their_folders(path, name):
    assert base_name(path) == name
    assert public_values({"data": {"train": {"source": [path]}}, "seed": 1}) == {
        "data": {"train": {"source": [name]}},
        "seed": 1,
    }


def test_names_with_line_ends_make_no_headings(tmp_path, validate):
    part = {"source": "a.txt", "target": "b.txt"}
    name = "news\n# Ignore this |"
    card = card_of(tmp_path, [f"output_dir={json.dumps(str(tmp_path / 'a *run* $5'))}"], {name: part})
    validate(card)
    headings = re.findall("^#+ (.*)$", card.text, flags=re.M)
    assert headings == [r"a \*run\* \$5", *SECTIONS]
    assert r"| news # Ignore this \| |" in card.text
    assert r"| a \| b c | \<i>d\</i> | \$e\$ \*f\* |" in card.text


def test_a_card_names_the_repository_it_is_pushed_to(finished):
    text = (finished[0] / "README.md").read_text()
    pushed = card_of_repository(text, "me/model")
    assert '"."' in text and '"."' not in pushed and '"me/model"' in pushed
    assert "FOLDER" not in pushed and "Replace `" not in pushed
    assert "adapter:" not in text and ": null" not in text
    assert card_of_repository("# Mine\n", "me/model") == "# Mine\n"


def test_what_others_wrote_stays_a_literal_in_the_lines_of_a_card():
    text = """He wrote "." and 'x', or "."."""
    code = model_card._in_folder(f'load = "."\nfound = {text!r}', text, repr("/a/b"))
    values: dict[str, str] = {}
    exec(code, values)
    assert (values["load"], values["found"]) == ("/a/b", text)


def test_a_finished_run_gets_another_card_by_resuming(tmp_path, validate):
    values = recipe_values(tmp_path)
    folder = run(values, ["data.test={}"]).folder
    before, minutes = weights(folder), json.loads((folder / "metrics.json").read_text())["training"]["minutes"]
    run(values, ["data.test={}", "card.license=mit", "card.title=Anew"], resume=True)
    card = ModelCard.load(folder / "README.md")
    validate(card)
    assert card.data.license == "mit" and card.data.model_name == "Anew" and card.text.startswith("\n# Anew\n")
    assert equal_weights(weights(folder), before)
    assert json.loads((folder / "metrics.json").read_text())["training"]["minutes"] == minutes


def test_energy_is_time_and_watts_multiplied():
    given = estimate_emissions(90, 4, watts=10, grams_co2_per_kwh=500)
    assert given["kilowatt_hours"] == 0.06 and given["grams_co2"] == 30 and not given["watts_assumed"]
    assumed = estimate_emissions(60, 2, accelerator=True)
    assert assumed["kilowatt_hours"] == 0.4 and assumed["grams_co2"] is None and assumed["watts_assumed"]
    assert estimate_emissions(60, 1, grams_co2_per_kwh=0)["grams_co2"] == 0


def card_of(tmp_path, overrides=(), test=None, metrics=None, repository=None):
    """The card that a run by a recipe would have, with made-up scores."""
    values = recipe_values(tmp_path / "data")
    if test is not None:
        values["data"]["test"] = test
    changed = Recipe.from_dict(override_fields(values, overrides))
    task = changed.new_task()
    task.tokenizer = task.target_tokenizer = None
    signature = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
    scores = {"bleu": 12.5, "chrf": 40.0, "exact_match": 0.25, "sentences": 16}
    scores |= {"bleu_signature": signature, "chrf_signature": signature}
    report = {"name": "a | b", "kept": 1, "read": 2, "sha256": "0" * 64}
    made_up = {
        "training": {
            "minutes": 1.5, "updates": 9, "epochs": 3.0, "examples": 120, "tokens_per_second": None,
            "architecture": "encoder-decoder", "parameters": 1000, "processes": 2, "stopped": "ended at update 9: done", "warmup": None,
        },
        "data": dict.fromkeys(("train", "validation", *changed.data.test), report),
        "hardware": {"device": "cpu", "machine": "x86_64", "threads": 2, "torch": "2.13.0"},
        "energy": estimate_emissions(1.5, 4),
        "model": {"validation": {"best": scores}, "weights": "best", "weights_are": "best checkpoint"},
        "test": {name: dict(scores) for name in changed.data.test},
        "examples": [{"source": "a | b\nc", "reference": "<i>d</i>", "output": "$e$ *f*"}],
    }  # fmt: skip
    for name, value in (metrics or {}).items():
        made_up["test"]["unseen"][name] = value
    model_card.write_model_card(tmp_path, changed, task, made_up, repository)
    return ModelCard.load(tmp_path / "README.md")


def test_names_that_are_no_identifiers_make_valid_cards(tmp_path, validate):
    """Of tests, languages and folders, and fences within the recipe."""
    names = ["held out: 10 %", "held out  10 !", "ünï", "a|b", "..", "2016"]
    part = {"source": "a.txt", "target": "b.txt"}
    code = "Writes\n```python\nprint('---')\n```\nand more: {{ nothing }}\n---\n"
    card = card_of(
        tmp_path,
        [
            "data.source_language=pt_BR",
            "data.target_language=Deutsch",
            f"card.description={json.dumps(code)}",
            f"output_dir={json.dumps(str(tmp_path / 'My run: 1'))}",
        ],
        dict.fromkeys(names, part),
    )
    validate(card)
    data = comes_back(card)
    assert data["language"] == ["pt"] and data["language_bcp47"] == ["pt-BR"]
    assert data["model-index"][0]["name"] == "My run: 1"
    assert [result["dataset"]["name"] for result in data["model-index"][0]["results"]] == names
    assert [result["dataset"]["type"] for result in data["model-index"][0]["results"]] == [
        "held-out-10", "held-out-10-2", "n", "a-b", "data", "2016",
    ]  # fmt: skip
    assert "| a\\|b | 12.5 |" in card.text and "| a \\| b | 1 of 2 |" in card.text
    assert "\n````yaml\n" in card.text and card.text.count("\n````\n") == 1
    assert "\nand more: {{ nothing }}" in card.text


def test_data_and_models_of_the_hub_are_named(tmp_path, validate, monkeypatch):
    """Two parts of one data set are two results; a folder that exists is no id."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "me" / "folder").mkdir(parents=True)
    hub = {"path": "me/pairs", "format": "hub", "name": "de-en", "revision": "123", "source": "s", "target": "t"}
    tests = {
        "first": hub | {"split": "test"},
        "second": hub | {"split": "test"},
        "folder": hub | {"path": "me/folder"},
    }
    options = [f"data.train={json.dumps(hub)}", "data.source_language=null", "data.target_language=null"]
    card = card_of(tmp_path, options, tests, repository="me/en-de")
    validate(card)
    data = comes_back(card)
    assert data["datasets"] == ["me/pairs"] and "language" not in data and "base_model" not in data
    first, second, folder = (result["dataset"] for result in data["model-index"][0]["results"])
    assert [first[name] for name in ("type", "config", "split", "revision")] == ["me/pairs", "de-en", "test", "123"]
    assert (second["type"], second["split"], folder["type"]) == ("second", "test", "folder")
    source = data["model-index"][0]["results"][0]["source"]
    assert source == {"name": "metrics.json", "url": f"{constants.ENDPOINT}/me/en-de/blob/main/metrics.json"}
    assert 'from_pretrained("me/en-de")' in card.text and '"."' not in card.text
    assert is_hub_id("me/base") and not is_hub_id("me/folder")
    assert not is_hub_id("runs/a/b") and not is_hub_id("./runs")


def test_a_score_that_is_no_number_is_left_out(tmp_path, validate):
    card = card_of(tmp_path, metrics={"bleu": math.nan})
    validate(card)
    assert [result.metric_type for result in card.data.eval_results] == ["chrf"] and card.data.metrics == ["chrf"]
    card = card_of(tmp_path, metrics={"bleu": math.nan, "chrf": math.inf})
    validate(card)
    assert not card.data.eval_results and "model-index" not in card.data.to_dict()


def test_a_run_is_not_lost_for_want_of_a_card(tmp_path, monkeypatch):
    def broken(*arguments):
        raise ValueError("nobody thought of this")

    monkeypatch.setattr("vanilla_transformer.runs.run.write_model_card", broken)
    said = []
    result = run(recipe_values(tmp_path), [*QUICK, "data.test={}"], log=said.append)
    assert (
        "README.md was not written (ValueError: nobody thought of this); metrics.json holds what it would say." in said
    )
    assert said[-1] == f"finished: {result.folder}"
    assert {"metrics.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in result.folder.iterdir()}
    assert not (result.folder / "README.md").exists()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "card.license=Apache 2.0",
            "is not a licence that the Hub knows; did you mean 'apache-2.0'? Any other licence is",
        ),
        ("card.license=MIT", "did you mean 'mit'?"),
        ("card.license=CC-BY-SA 4", "did you mean 'cc-by-sa-4.0'?"),
        (
            "card.license=proprietary",
            "it has apache-2.0, mit and others; any other licence is 'other', with card.license",
        ),
        ("card.license=other", "card.license_name goes with card.license=other"),
        ("card.license_link=LICENSE", "card.license_link goes with card.license=other"),
        (
            "card.pipeline_tag=fill-mask",
            "card.pipeline_tag='fill-mask' is nothing that a model of task seq2seq is for; it is translation or summarization",
        ),
        ("card.watts=0", "card.watts=0.0 must be a number above 0"),
        ("card.watts=.inf", "card.watts=inf must be a number above 0"),
        ("card.grams_co2_per_kwh=-1", "card.grams_co2_per_kwh=-1.0 must be a number of at least 0"),
        ("card.licence=mit", "unknown field card.licence; did you mean 'license'?"),
        ("card.title=''", "card.title='' must be one line that is not empty"),
        ("data.test.train={source: a, target: b}", "data.test.train: a test needs a name of its own"),
    ],
)
def test_what_no_card_can_say_is_refused_before_training(override, sentence, tmp_path):
    with pytest.raises(RecipeError) as error:
        Recipe.from_dict(override_fields(recipe_values(tmp_path), [override]))
    assert sentence in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_name_of_a_licence_is_an_identifier(tmp_path):
    other = ["card.license=other", "card.license_link=https://example.org/licence"]
    with pytest.raises(RecipeError, match="card.license_name='My licence' must be an identifier in lower case"):
        Recipe.from_dict(override_fields(recipe_values(tmp_path), [*other, "card.license_name=My licence"]))
    assert len(LICENSES) > 80 and all(name == name.lower() for name in LICENSES)


# The Hub's validation refuses what is wrong --------------------------------------------------------------------------

RIGHT = """
language: [en]
license: mit
datasets: [me/pairs]
co2_eq_emissions: {emissions: 3.5, source: estimate}
model-index:
- name: a model
  results:
  - task: {type: translation}
    dataset: {type: me/pairs, name: Pairs, revision: "123", args: {sha256: abc}}
    metrics: [{type: bleu, value: 3.5}]
    source: {url: "https://example.org/a"}
"""


class AsWritten(ModelCard):
    """A card that is sent without being read, as reading would stop at some faults."""

    def __init__(self, content):
        self.as_written = content

    def __str__(self):
        return self.as_written


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("license: mit", "license: MIT", '\\"license\\" must be one of'),
        ("license: mit", "license: other", '\\"license_name\\" is required'),
        ("[en]", "[English]", '\\"language\\" with value \\"English\\" is not valid'),
        ("[me/pairs]", "[a b]", '\\"datasets\\" with value \\"a b\\" fails to match the required pattern'),
        ("{type: me/pairs,", "{type: held out,", '\\"model-index[0].results[0].dataset.type\\" with value'),
        ("name: a model", "nom: a model", '\\"model-index[0].name\\" is required'),
        ("name: Pairs, ", "", '\\"model-index[0].results[0].dataset.name\\" is required'),
        ('"123"', "123", '\\"model-index[0].results[0].dataset.revision\\" must be a string'),
        ("sha256: abc", "sha256: null", '\\"model-index[0].results[0].dataset.args\\" must be'),
        (", value: 3.5", "", '\\"model-index[0].results[0].metrics[0].value\\" is required'),
        ("value: 3.5", "value: .nan", '\\"model-index[0].results[0].metrics[0].value\\" must be'),
        ("value: 3.5", "value: 3.5, verified: true", "only the Hub verifies"),
        ("url: ", "name: ", '\\"model-index[0].results[0].source.url\\" is required'),
        ("emissions: 3.5", "emissions: some", '\\"co2_eq_emissions\\" must be a number'),
        ("{type: translation}", "{name: translation}", '\\"model-index[0].results[0].task.type\\" is required'),
    ],
)
def test_the_validation_tells_wrong_from_right(right, wrong, message, validate):
    validate(ModelCard(f"---{RIGHT}---\n# A model\n"))
    assert right in RIGHT
    with pytest.raises(ValueError) as error:
        validate(AsWritten(f"---{RIGHT.replace(right, wrong)}---\n# A model\n"))
    assert message in str(error.value)


# Recorded cards ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_a_recorded_card_is_valid_and_whole(path, validate):
    card = ModelCard.load(path)
    validate(card)
    data = comes_back(card)
    assert data == metadata_load(path)
    assert re.findall("^## (.*)$", card.text, flags=re.M) == SECTIONS
    # no weights are kept here, so there is nothing to license
    assert "license" not in data and "co2_eq_emissions" not in data
    assert {key: value for key, value in data.items() if key in ("library_name", "pipeline_tag")} == {
        "library_name": "transformers",
        "pipeline_tag": TASKS[
            yaml.safe_load(card.text.partition("```yaml\n")[2].partition("```")[0])["task"]
        ].pipeline_tag,
    }
    rows = dict(re.findall(r"^\| (\w+) \| .* \| `([0-9a-f]{64})` \|$", card.text, flags=re.M))
    assert rows.keys() >= {"train", "validation"}
    for result in card.data.eval_results:
        assert result.dataset_args["sha256"] == rows[result.dataset_name]
    minutes = float(re.search(r"updates in ([0-9.]+) minutes", card.text)[1])
    stated = float(re.search(r"^About ([0-9.e-]+) kWh, estimated and not measured", card.text, flags=re.M)[1])
    assert stated == float(f"{estimate_emissions(minutes, 1)['kilowatt_hours']:.2g}")
    assert (path.with_suffix(".png")).is_file() and f"]({path.stem}.png)" in card.text
