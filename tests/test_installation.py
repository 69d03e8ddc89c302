"""What is installed, and what is said where something is not."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.build import build_wheel
from packaging.requirements import Requirement

from vanilla_transformer.errors import RecipeError
from vanilla_transformer.trainer.adapter import AdapterSection
from vanilla_transformer.utils.extras import PACKAGES, missing, needs

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SOURCES = [
    path
    for folder in ("vanilla_transformer", "scripts", "model_cards", "tests")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md", ".yaml") and path != Path(__file__)
]
COMMAND = "import sys; from vanilla_transformer.cli import main; main(sys.argv[1:])"


def packages_of(requirements):
    return {Requirement(requirement).name for requirement in requirements}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of this checkout, built as pip builds it."""
    folder, before = tmp_path_factory.mktemp("wheel"), Path.cwd()
    os.chdir(ROOT)  # where a build backend is called
    try:
        return folder / build_wheel(str(folder))
    finally:
        os.chdir(before)


def test_a_wheel_holds_the_recipes_and_says_that_it_is_typed(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        recipes = {
            name: archive.read(name) for name in names if name.startswith("vanilla_transformer/recipes/bundled/")
        }
    expected = sorted((ROOT / "scripts" / "recipes").glob("*.yaml"))
    assert (
        {Path(name).name: text for name, text in recipes.items()} == {p.name: p.read_bytes() for p in expected} != {}
    )
    assert {"py.typed", "demo.yaml", "runs/model_card_template.md"} <= {
        name.removeprefix("vanilla_transformer/") for name in names
    }
    assert {name.partition("/")[0] for name in names} == {"vanilla_transformer", "vanilla_transformer-0.1.0.dist-info"}


def test_recipes_are_read_from_an_installed_wheel(wheel, tmp_path):
    # from the archive as it is: the checkout is out of reach, and so is any reading by a path
    def run(*arguments):
        command = [sys.executable, "-P", "-c", COMMAND, *arguments]
        env = {**os.environ, "PYTHONPATH": str(wheel)}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout

    expected = sorted((ROOT / "scripts" / "recipes").glob("*.yaml"))
    assert [line.split()[0] for line in run("recipe", "--list").splitlines()] == [path.stem for path in expected]
    assert run("recipe", expected[0].stem) == expected[0].read_text(encoding="utf-8")


def test_packages_are_in_the_extras_that_messages_name():
    extras = PROJECT["optional-dependencies"]
    for module, (package, extra) in PACKAGES.items():
        assert extra is None or package in packages_of(extras[extra]), module
    # and those that a user chooses by themselves are all known to the messages
    needed = packages_of(PROJECT["dependencies"])
    for extra in ("plots", "convert", "export", "serve", "peft", "tensorboard", "trackio"):
        assert packages_of(extras[extra]) - needed <= {package for package, _ in PACKAGES.values()}, extra


def test_a_missing_package_is_one_sentence_with_two_commands():
    with pytest.raises(ImportError) as error, needs("the server"):
        raise ModuleNotFoundError("No module named 'prometheus_client.core'", name="prometheus_client.core")
    assert str(error.value) == missing("the server", "prometheus_client")
    assert str(error.value) == (
        "the server needs prometheus-client, which is not installed; `pip install prometheus-client`, or in the source of "
        "this package, for its extra `serve`, `pip install -c constraints.txt -e '.[serve]'`."
    )
    assert missing("--comet", "comet") == (
        "--comet needs unbabel-comet, which is not installed; `pip install unbabel-comet`."
    )


def test_an_adapter_without_peft_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(RecipeError) as error:
        AdapterSection(r=8).config("seq2seq")
    assert str(error.value) == missing("adapter", "peft").removesuffix(".") + "; or leave the section out."


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'vanilla_transformer.gone'", name="vanilla_transformer.gone"),
        ImportError("cannot import name 'x' from 'onnx'", name="onnx"),
    ],
)
def test_other_failing_imports_are_not_called_a_missing_package(error):
    with pytest.raises(ImportError) as raised, needs("this export"):
        raise error
    assert raised.value is error


def test_nothing_is_said_to_be_in_an_index_that_is_not():
    for path in [*SOURCES, ROOT / "README.md"]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"vanilla[-_]transformer\[|pip install (-U )?vanilla", text), path
        # pictures, tokenizers, servers: their packages are named by one sentence alone
        if path.is_relative_to(ROOT / "vanilla_transformer") and path.name not in ("extras.py", "model_card.py"):
            assert re.findall(r"pip install (?!-c constraints\.txt -e \.)[^`]*", text) == [], path


def test_install_lines_are_in_one_place_and_take_the_tested_versions():
    section = README[README.index("## Installation") :].partition("\n## ")[0]
    lines = re.findall(r"^pip install.*", README, flags=re.M)
    assert re.findall("pip install", section) == re.findall("pip install", README) and len(lines) == 2
    assert all("-c constraints.txt" in line for line in lines)
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.M))
    for package in ("torch", "transformers"):
        named = re.findall(rf"\b{package}(?:==| )(\d+\.\d+\.\d+)", README)
        assert named and set(named) == {pinned[package]}, package
    extras = {
        name for row in re.findall(r"^\| (`.*?) \|", section, flags=re.M) for name in re.findall(r"`([\w-]+)`", row)
    }
    assert extras == set(PROJECT["optional-dependencies"]) - {"demo"}  # which make installs
