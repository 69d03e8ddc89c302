"""The command and the package start at once: torch and transformers are imported by what needs them, and by nothing else."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from transformers import GenerationConfig, Seq2SeqTrainingArguments

import vanilla_transformer
from runs import ROOT, recipe_values
from vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.recipes.known_fields import known_fields, refuse_mistyped
from vanilla_transformer.recipes.recipe import Recipe, RecipeError
from vanilla_transformer.registration import MODELS
from vanilla_transformer.tasks import TASKS

PROGRAM = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from vanilla_transformer.cli import main

ended = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as end:
            ended.append([end.code, out.getvalue(), err.getvalue()])
print(json.dumps([ended, [name for name in ("torch", "transformers", "datasets", "numpy") if name in sys.modules]]))
"""


def in_a_fresh_process(code, *arguments):
    process = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_help_version_and_refusals_import_neither_torch_nor_transformers(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe_values(tmp_path)))
    commands = ["train", "ablate", "train-tokenizer", "generate", "evaluate", "average", "convert", "push", "inspect"]
    asked = [
        (["--help"], 0, "Transformers trained from scratch"),
        (["-h"], 0, "Transformers trained from scratch"),
        (["--version"], 0, vanilla_transformer.__version__),
        *(([command, "-h"], 0, "--help") for command in (*commands, "explain", "demo", "serve")),
        ([], 2, "Transformers trained from scratch"),
        (["trian"], 2, "No such command 'trian'"),
        (["generate", "--modle", "x"], 2, "--model"),
        (["train", "gone.yaml"], 2, "there is no recipe gone.yaml"),
        (["train", str(path), "model.dropuot=0.1"], 2, "unknown field model.dropuot; did you mean 'dropout'?"),
        (["train", str(path), "training.max_setps=1"], 2, "did you mean 'max_steps'?"),
        (["train", str(path), "data.train.sorce=x"], 2, "unknown field data.train.sorce; did you mean 'source'?"),
        (["train", str(path), "generation.num_beam=1"], 2, "did you mean 'num_beams'?"),
        (["ablate", str(path), "tokenizr.vocab_size=1"], 2, "did you mean 'tokenizer'?"),
        (["generate", "-m", "x", "-i", "gone.txt"], 2, "there is no input file gone.txt"),
        (["generate", "-m", "x", "-o", "gone/x"], 2, "there is no folder"),
    ]
    ended, imported = in_a_fresh_process(PROGRAM, json.dumps([arguments for arguments, *_ in asked]))
    for (status, out, err), (arguments, expected, said) in zip(ended, asked, strict=True):
        assert (status, said in out + err) == (expected, True), (arguments, status, out, err)
        assert len(err.splitlines()) == (1 if status and arguments else 0), (arguments, err)
    assert imported == []


ANY_FIRST = """
import importlib, json, os, sys
import torch, transformers.generation, transformers.masking_utils, transformers.modeling_layers

failed = []
for name in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        importlib.import_module(name)
        from vanilla_transformer.modeling_vanilla_transformer import Kernels, VanillaTransformerForCausalLM
        os._exit(type(Kernels.used) is Kernels or VanillaTransformerForCausalLM.decoding_backend is None)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
print(json.dumps(failed))
"""


def test_any_module_of_the_model_can_be_imported_first():
    """Each of them leads to the tables that registration fills while modules are being imported."""
    package = ROOT / "vanilla_transformer"
    files = [*package.glob("*_vanilla_transformer.py"), *package.glob("kernels/*.py"), *package.glob("decoding/*.py")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]
    assert in_a_fresh_process(ANY_FIRST, json.dumps(sorted(names))) == []


@pytest.mark.parametrize("first", ["vanilla_transformer", "transformers, peft"])
def test_models_are_known_everywhere_whichever_package_is_imported_first(first):
    code = f"""
import {first}
from transformers.models.auto import modeling_auto
import vanilla_transformer, json, transformers, sys
assert "vanilla_transformer.modeling_vanilla_transformer" not in sys.modules
from vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.registration import MODELS
found = {{}}
assert type(transformers.AutoConfig.for_model("vanilla_transformer")) is VanillaTransformerConfig
for automatic in MODELS:
    mapping = getattr(transformers, automatic)._model_mapping
    assert VanillaTransformerConfig in mapping
    found[automatic] = mapping[VanillaTransformerConfig].__name__
assert VanillaTransformerConfig in transformers.AutoModel._model_mapping.keys()
from transformers.pipelines import PIPELINE_REGISTRY
found["tasks"] = [name for name in PIPELINE_REGISTRY.supported_tasks if name in ("translation", "summarization")]
import peft.utils.constants as constants
found["peft"] = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING["vanilla_transformer"]
print(json.dumps(found))
"""
    found = in_a_fresh_process(code)
    assert (found.pop("tasks"), found.pop("peft")) == (["translation", "summarization"], ["q_proj", "v_proj"])
    assert found == {automatic: name for automatic, (_, name) in MODELS.items()}


def test_what_is_used_of_transformers_is_there():
    """Tables of names of `transformers.models.auto`, and the names of configurations that its mappings keep reversed."""
    from transformers.models.auto import configuration_auto, modeling_auto

    assert configuration_auto.CONFIG_MAPPING._mapping is configuration_auto.CONFIG_MAPPING_NAMES
    for automatic, (table, _) in MODELS.items():
        mapping = getattr(transformers, automatic)._model_mapping
        assert mapping._model_mapping is getattr(modeling_auto, table)
        assert mapping._reverse_config_mapping["BartConfig"] == "bart"


def test_the_package_lists_its_classes_before_they_are_loaded():
    assert set(vanilla_transformer.__all__) <= set(dir(vanilla_transformer))
    with pytest.raises(AttributeError, match="no attribute 'VanillaTransformerFor'"):
        vanilla_transformer.VanillaTransformerFor  # noqa: B018


def test_no_field_that_a_recipe_may_have_is_taken_for_a_slip():
    """The names that are read from the source are those that the classes have."""
    fields = {
        "": {field.name for field in dataclasses.fields(Recipe)},
        "model": {f.name for f in dataclasses.fields(VanillaTransformerConfig)}
        | set(VanillaTransformerConfig.attribute_map),
        "training": {field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)},
        "generation": {*GenerationConfig().to_dict(), "max_length_over_source", "length_penalty_form"},
        "data.train": set().union(*(task.split_fields for task in TASKS.values())),
    }
    for field in dataclasses.fields(Recipe):
        if dataclasses.is_dataclass(field.type):
            fields[field.name] = {inner.name for inner in dataclasses.fields(field.type)}
    for section, names in fields.items():
        assert names and not names - known_fields(section), section
    for path in sorted((ROOT / "scripts" / "recipes").glob("*.yaml")):
        import yaml

        refuse_mistyped(yaml.safe_load(path.read_text()))
    refuse_mistyped({"nothing": 1, "like": {"any": 2}, "model": {"attn_implementation": "eager"}, 3: 4, "data": None})
    with pytest.raises(RecipeError, match="unknown field card.titel; did you mean 'title'"):
        refuse_mistyped({"card": {"titel": "x"}})
    with pytest.raises(RecipeError, match=r"unknown field data.test.x.taget; did you mean 'target'"):
        refuse_mistyped({"data": {"test": {"x": {"taget": "x"}}}})
    assert Path(vanilla_transformer.__file__).is_file()
