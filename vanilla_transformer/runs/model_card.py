"""The model card of a run: what it does and for whom, how to use it, how it was made, what that took and how it scores.

Its head is metadata as the Hub wants it (https://github.com/huggingface/hub-docs/blob/main/modelcard.md) and checks it when
a card is pushed.
"""

import contextlib
import io
import itertools
import json
import math
import re
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import EvalResult, ModelCard, ModelCardData, constants

from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.tasks import Task
from vanilla_transformer.utils.names import is_hub_id
from vanilla_transformer.utils.public import base_name, escape_markdown, one_line, public_values, without_nulls
from vanilla_transformer.utils.quiet import quiet
from vanilla_transformer.utils.yaml_text import dump_yaml

TEMPLATE = "model_card_template.md"

INSTALL = 'pip install torch "transformers>=5.24,<6"'
"""What the lines of a card need beside the code that stands with the weights."""


def write_model_card(
    folder: Path, recipe: Recipe, task: Task, metrics: dict[str, Any], repository: str | None = None
) -> Path:
    """Write `README.md` into a folder with what belongs to a run.

    Args:
        folder: where it goes; the card shows the curves that stand there.
        recipe: as run.
        task: of the run.
        metrics: as in `metrics.json`.
        repository: the id under which the run is pushed; the card then names it.
    """
    title = recipe.card.title or Path(recipe.output_dir).absolute().name or "model"
    data = _metadata(title, recipe, task, metrics, repository)
    text = resources.files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"escape": escape_markdown, "line": one_line, "base_name": base_name}
    public = without_nulls(public_values(recipe.to_dict()))
    if recipe.adapter.kind is None:  # what else the section says has no effect
        public.pop("adapter", None)
    recipe_yaml = dump_yaml(public, width=100)
    is_adapter = recipe.adapter.kind and not recipe.adapter.merge
    example = str(recipe.start_from) if is_adapter else _example_text(task, metrics)
    use = _use_of_adapter(recipe) if is_adapter else task.use(example)
    output = _output_of(_in_folder(use, example, repr(str(folder))))
    if is_adapter:  # without saying where the model stands on this machine
        use, example = use.replace(repr(example), repr(base_name(example))), base_name(example)
    body = environment.from_string(text).render(
        title=title,
        recipe=recipe,
        metrics=metrics,
        task=task,
        use=with_output(_in_folder(use, example, json.dumps(repository)) if repository else use, output),
        install=INSTALL,
        repository=repository,
        score_rows=_score_rows(task, metrics),
        recipe_yaml=recipe_yaml,
        # a recipe may hold fences of its own
        fence="`" * max(3, 1 + max(map(len, re.findall("`+", recipe_yaml)), default=0)),
        has_curves=(folder / "curves.png").is_file(),
    )
    card = ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body.strip()}\n")
    path = folder / "README.md"
    card.save(path)
    return path


def _use_of_adapter(recipe: Recipe) -> str:
    """Return lines of Python that put the adapter in the folder "." into the model that it was trained in."""
    kinds = {"seq2seq": "Seq2SeqLM", "causal-lm": "CausalLM", "masked-lm": "MaskedLM"}
    head = f"AutoModelFor{kinds.get(recipe.task, recipe.task.title().replace('-', ''))}"
    return (
        "import vanilla_transformer  # makes the model type known to transformers\n"
        "from peft import PeftModel\n"
        f"from transformers import {head}, AutoTokenizer\n\n"
        f'model = PeftModel.from_pretrained({head}.from_pretrained({str(recipe.start_from)!r}), ".")\n'
        'tokenizer = AutoTokenizer.from_pretrained(".")'
    )


def _example_text(task: Task, metrics: dict[str, Any]) -> str:
    """Return the shortest text of the examples, or one in general terms."""
    sources = [one_line(example["source"]) for example in metrics["examples"]]
    return min(filter(None, sources), key=len, default="A text such as it was trained on.")


def _in_folder(code: str, given: str, place: str) -> str:
    """Return lines of a card with another place for the folder ".", but not within the literal of what was given to them.

    That is text of others, such as a row of the data: a quotation mark put into it would end the literal, and what comes
    after that would be code.
    """
    return repr(given).join(part.replace('"."', place) for part in code.split(repr(given)))


def _output_of(code: str) -> str | None:
    """Run the lines of a card, as its reader will, and return what they print; None where they cannot be run here yet.

    They are this package's own, with what others wrote in literals.
    """
    printed = io.StringIO()
    try:
        with quiet(), contextlib.redirect_stdout(printed):
            exec(code, {})
    except Exception:  # the card is worth having without it
        return None
    return printed.getvalue().strip() or None


def with_output(code: str, output: str | None) -> str:
    """Return lines of code with what they print as a comment behind them."""
    if output is None:
        return code
    return code + "".join(f"\n# {line}" for line in output.splitlines())


def _metadata(
    title: str, recipe: Recipe, task: Task, metrics: dict[str, Any], repository: str | None
) -> ModelCardData:
    codes = [recipe.data.source_language, recipe.data.target_language, recipe.data.language]
    languages, regional = _languages([code for code in codes if code])
    results = _results(recipe, task, metrics, repository)
    trained_on = _hub_dataset(recipe, "data.train")
    return ModelCardData(
        language=languages or None,
        language_bcp47=regional or None,
        # of the weights. Where the recipe gives none there is none, and the field is left out, which the Hub allows:
        # `unknown` would say that there is one, and the licence of the data is not the one of the weights
        license=recipe.card.license,
        license_name=recipe.card.license_name,
        license_link=recipe.card.license_link,
        library_name="transformers",
        pipeline_tag=recipe.card.pipeline_tag or task.pipeline_tag,
        tags=[
            "vanilla-transformer",
            *(["trained-from-scratch"] if recipe.start_from is None else []),
            *([recipe.adapter.kind] if recipe.adapter.kind else []),
        ],
        datasets=None if trained_on is None else [trained_on["type"]],
        base_model=recipe.start_from if recipe.start_from and is_hub_id(recipe.start_from) else None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        co2_eq_emissions=_emissions(recipe, metrics),
        model_name=title if results else None,
        eval_results=results or None,
    )


def _languages(codes: list[str]) -> tuple[list[str], list[str]]:
    """Return ISO 639 codes, and BCP 47 codes of several parts, such as pt-BR; other names, as of columns, are not languages."""
    codes = list(dict.fromkeys(code.replace("_", "-") for code in codes))
    regional = [code for code in codes if re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})+", code)]
    plain = [code.partition("-")[0] for code in codes if code in regional or re.fullmatch("[a-z]{2,3}", code)]
    return list(dict.fromkeys(plain)), regional


def _hub_dataset(recipe: Recipe, part: str) -> dict[str, Any] | None:
    """Return the fields of the model index for a split that comes from the Hub; None where it does not."""
    found = recipe.splits(part)[part]
    if found.path is None or found.kind != "hub" or Path(str(found.path)).exists():
        return None
    split = found.split or "train"
    return {"type": str(found.path), "config": found.name, "split": split, "revision": found.revision}


def _emissions(recipe: Recipe, metrics: dict[str, Any]) -> dict[str, Any] | None:
    """Return them as https://huggingface.co/docs/hub/model-cards-co2 has them; None where the carbon intensity is not known."""
    energy, hardware = metrics["energy"], metrics["hardware"]
    if energy["grams_co2"] is None:
        return None
    processors = f"{energy['processors']} {energy['processor']}{'s' if energy['processors'] > 1 else ''}"
    location = {"geographical_location": recipe.card.location} if recipe.card.location else {}
    return {
        "emissions": energy["grams_co2"],
        "source": f"estimate, not measured: {energy['minutes']:.1f} minutes x {processors} x {energy['watts']:g} W x "
        f"{energy['grams_co2_per_kwh']:g} g/kWh",
        "training_type": "from scratch" if recipe.start_from is None else "fine-tuning",
        **location,
        "hardware_used": f"{processors} ({hardware['device']}, {hardware['machine']})",
    }


def _score_rows(task: Task, metrics: dict[str, Any]) -> list[list[str]]:
    """Return the table of scores: on which data, then a cell for each of the task's columns."""
    words = {"average": "mean of the last", "average_best": "mean of the best", "ema": "moving average of the"}
    validation = metrics["model"]["validation"].items()
    scored = {f"validation, {words.get(name, name)} weights": scores for name, scores in validation} | metrics["test"]
    return [
        [name, *(column.format.format(scores[column.key]) for column in task.score_columns)]
        for name, scores in scored.items()
    ]


def _results(recipe: Recipe, task: Task, metrics: dict[str, Any], repository: str | None) -> list[EvalResult]:
    """Return the scores on the tests, or where there is none on the validation data, for the Hub's model index."""
    model = metrics["model"]
    scored = {name: (f"data.test.{name}", scores) for name, scores in metrics["test"].items()}
    scored = scored or {"validation": ("data.validation", model["validation"][model["weights"]])}
    source: dict[str, Any] = {}
    if repository is not None:
        url = f"{constants.ENDPOINT}/{repository}/blob/{recipe.training.get('hub_revision') or 'main'}/metrics.json"
        source = {"source_name": "metrics.json", "source_url": url}
    results: list[EvalResult] = []
    known: set[tuple[Any, ...]] = set()
    for name, (part, scores) in scored.items():
        split = "validation" if part == "data.validation" else "test"
        identifiers = (_identifier(name) + end for end in itertools.chain([""], (f"-{n}" for n in itertools.count(2))))
        dataset = _hub_dataset(recipe, part) or {"type": next(identifiers), "split": split}
        while tuple(dataset.values()) in known:  # which the client would put into one entry
            dataset = {"type": next(identifiers), "split": split}
        known.add(tuple(dataset.values()))
        report = metrics["data"][name]
        for metric, label, value in task.results(scores):
            if not math.isfinite(value):
                continue
            # without `verified`, which the Hub alone sets
            result = EvalResult(
                task_type=recipe.card.pipeline_tag or task.pipeline_tag,
                dataset_type=dataset["type"],
                dataset_name=name,
                dataset_config=dataset.get("config"),
                dataset_split=dataset["split"],
                dataset_revision=dataset.get("revision"),
                dataset_args={"sha256": report["sha256"], task.noun: report["kept"]},
                metric_type=metric,
                metric_name=label,
                metric_value=value,
                metric_args=task.metric_args(metric) or None,
                **source,
            )
            results.append(result)
    return results


def _identifier(name: str) -> str:
    """Return a name in the characters that the Hub allows in one of a data set."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.") or "data"
