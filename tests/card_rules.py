"""What the Hub refuses in the metadata of a model card, as https://github.com/huggingface/hub-docs/blob/main/modelcard.md
describes it, with errors such as it writes them. Where the description leaves room, this is the stricter reading."""

import math
import re

import yaml
from huggingface_hub.repocard import REGEX_YAML_BLOCK

from vanilla_transformer.recipes.licenses import LICENSES

NAME_ON_HUB = r"(?:[\w-]+/)?[\w.-]+"
TASKS = {"text-generation", "text-classification", "token-classification", "fill-mask", "translation", "summarization"}
TASKS |= {"question-answering", "feature-extraction", "text-ranking", "zero-shot-classification", "other"}
SPECIAL_LANGUAGES = {"code", "multilingual"}


def check_card(content):
    """(errors, warnings) for the text of a README.md."""
    found = REGEX_YAML_BLOCK.search(content)
    if found is None:
        return [], ["empty or missing yaml metadata in repo card"]
    try:
        data = yaml.safe_load(found[2])
    except yaml.YAMLError as error:
        return [f"YAML Metadata Error: {error}"], []
    if not isinstance(data, dict):
        return ["repo card metadata block should be a dict"], []
    rules = _Rules()
    rules.card(data)
    return rules.errors, rules.warnings


class _Rules:
    def __init__(self):
        self.errors, self.warnings = [], []

    def card(self, data):
        self.texts(data, "", ("library_name", "pipeline_tag", "license_name", "license_link", "thumbnail"))
        for key in ("tags", "metrics"):
            self.list_of_texts(data.get(key), key)
        for key in ("datasets", "base_model"):
            self.names(data.get(key), key)
        for code in self.one_or_more(data.get("language"), "language"):
            if not (isinstance(code, str) and (re.fullmatch("[a-z]{2,3}", code) or code in SPECIAL_LANGUAGES)):
                self.error(
                    f'"language" with value "{code}" is not valid. It must be an ISO 639-1, 639-2 or 639-3 code (two/three '
                    'letters), or a special value like "code", "multilingual"'
                )
        for license in self.one_or_more(data.get("license"), "license"):
            if license not in LICENSES:
                self.error(f'"license" must be one of {sorted(LICENSES)}')
        if data.get("license") == "other" and not data.get("license_name"):
            self.error('"license_name" is required')
        link = data.get("license_link")
        if isinstance(link, str) and link not in ("LICENSE", "LICENSE.md") and not _is_address(link):
            self.error('"license_link" must be LICENSE, LICENSE.md or a valid uri')
        if data.get("pipeline_tag") not in TASKS | {None}:
            self.warnings.append(f'"pipeline_tag" {data["pipeline_tag"]!r} is not in the official list')
        if "co2_eq_emissions" in data:
            self.emissions(data["co2_eq_emissions"])
        if "model-index" in data:
            for number, entry in enumerate(self.array(data["model-index"], "model-index")):
                self.entry(entry, f"model-index[{number}]")

    def emissions(self, value):
        if isinstance(value, dict):
            known = ("source", "training_type", "geographical_location", "hardware_used")
            self.keys(value, "co2_eq_emissions", ("emissions",), known)
            self.texts(value, "co2_eq_emissions.", known)
            value = value.get("emissions")
        if not _is_number(value) or value < 0:
            self.error('"co2_eq_emissions" must be a number of grams, or an object with `emissions`')

    def entry(self, entry, where):
        if not self.keys(entry, where, ("name", "results")):
            return
        self.texts(entry, f"{where}.", ("name",))
        for number, result in enumerate(self.array(entry["results"], f"{where}.results", empty=True)):
            self.result(result, f"{where}.results[{number}]")

    def result(self, result, where):
        if not self.keys(result, where, ("task", "dataset", "metrics"), ("source",)):
            return
        if self.keys(result["task"], f"{where}.task", ("type",), ("name",)):
            self.texts(result["task"], f"{where}.task.", ("type", "name"))
        dataset, path = result["dataset"], f"{where}.dataset"
        if self.keys(dataset, path, ("type", "name"), ("config", "split", "revision", "args")):
            self.texts(dataset, f"{path}.", ("type", "name", "config", "split", "revision"))
            self.names(dataset["type"], f"{path}.type")
            self.arguments(dataset, path)
        for number, metric in enumerate(self.array(result["metrics"], f"{where}.metrics")):
            self.metric(metric, f"{where}.metrics[{number}]")
        if "source" in result and self.keys(result["source"], f"{where}.source", ("url",), ("name",)):
            self.texts(result["source"], f"{where}.source.", ("url", "name"))
            if not _is_address(result["source"]["url"]):
                self.error(f'"{where}.source.url" must be a valid uri')

    def metric(self, metric, where):
        more = ("name", "config", "args", "verified", "verifyToken")
        if not self.keys(metric, where, ("type", "value"), more):
            return
        self.texts(metric, f"{where}.", ("type", "name", "config", "verifyToken"))
        self.arguments(metric, where)
        if not _is_number(metric["value"]) and not (isinstance(metric["value"], str) and metric["value"]):
            self.error(f'"{where}.value" must be a finite number or a text')
        if metric.get("verified") and "verifyToken" not in metric:
            self.error(f'"{where}.verifyToken" is required, as only the Hub verifies')

    def arguments(self, value, where):
        # the client drops what is null, so that a card would not come back as it was
        if "args" in value and not (
            isinstance(value["args"], dict) and all(v is not None for v in value["args"].values())
        ):
            self.error(f'"{where}.args" must be an object without null')

    def keys(self, value, where, required, more=()):
        """Whether it is a mapping that has all that is required."""
        if not isinstance(value, dict):
            self.error(f'"{where}" must be of type object')
            return False
        missing = [key for key in required if value.get(key) is None]
        for key in missing:
            self.error(f'"{where}.{key}" is required')
        for key in value.keys() - {*required, *more}:
            self.error(f'"{where}.{key}" is not allowed')
        return not missing

    def texts(self, value, where, keys):
        for key in keys:
            if key in value and not (isinstance(value[key], str) and value[key]):
                self.error(f'"{where}{key}" must be a string')

    def names(self, value, where):
        for name in self.one_or_more(value, where):
            if isinstance(name, str) and not re.fullmatch(NAME_ON_HUB, name, flags=re.ASCII):
                self.error(
                    f'"{where}" with value "{name}" fails to match the required pattern: /^(?:[\\w-]+\\/)?[\\w-.]+$/'
                )

    def list_of_texts(self, value, where):
        if value is not None and not (isinstance(value, list) and all(isinstance(text, str) for text in value)):
            self.error(f'"{where}" must be an array of strings')

    def one_or_more(self, value, where):
        values = [] if value is None else value if isinstance(value, list) else [value]
        self.list_of_texts(values, where)
        return values

    def array(self, value, where, empty=False):
        if not isinstance(value, list) or not (value or empty):
            self.error(f'"{where}" must be an array')
            return []
        return value

    def error(self, message):
        self.errors.append(message)


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_address(text):
    return isinstance(text, str) and re.fullmatch(r"https?://[^\s/]+(/\S*)?", text) is not None
