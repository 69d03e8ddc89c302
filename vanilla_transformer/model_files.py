"""Which files of a folder are the model: what is pushed to the Hub, and copied beside averaged weights.

By exact names, those that this package and the tokenizers of transformers write. Everything else stays where it is: state of
training, notes, hidden files, whatever looks like an access token, and links that lead out of the folder.
"""

import re
from pathlib import Path

from transformers.utils.hub import CHAT_TEMPLATE_DIR

from vanilla_transformer.loading import INDEX, TARGET_TOKENIZER, WEIGHTS, read_json_object, shard_names

__all__ = ["companion_files", "files_left_out", "model_files"]

ADAPTER = ("adapter_config.json", "adapter_model.safetensors")

CONFIGURATION = ("config.json", "generation_config.json", "shortlist.safetensors")

TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json"),
    # vocabularies, as the classes of transformers name them
    *("vocab.json", "vocab.txt", "merges.txt", "vocab-src.json", "vocab-tgt.json", "target_vocab.json"),
    *("source.spm", "target.spm", "spiece.model", "spm.model", "spm_char.model", "sentencepiece.model"),
    *("sentencepiece.bpe.model", "tokenizer.model", "prophetnet.tokenizer", "bpe.codes", "dict.txt", "byte_maps.json"),
    *("emoji.json", "entity_vocab.json", "normalizer.json", "word_pronunciation.json", "word_shape.json"),
)

ABOUT = ("README.md", "LICENSE", "LICENSE.md", "LICENSE.txt", "recipe.yaml", "metrics.json", "curves.png")

CODE = tuple(path.name for path in sorted(Path(__file__).parent.glob("*_vanilla_transformer.py")))


def model_files(folder: str | Path) -> dict[str, Path]:
    """Return what makes the model in a folder, by its path in a repository: no checkpoints, no state of training.

    Weights are safetensors; the model card, the recipe as run, scores and curves go with them.

    Raises:
        FileNotFoundError: for a folder without a complete model.
    """
    folder = Path(folder)
    index = _inside(folder, folder / INDEX)
    weights = [WEIGHTS]
    if index and not _inside(folder, folder / WEIGHTS):
        weights = [INDEX, *shard_names(read_json_object(index), str(index))]
    required = ["config.json", *weights]
    if not _inside(folder, folder / weights[0]) and (adapter := _named(folder, folder, ADAPTER)):
        # one of PEFT that was not merged is shared by itself
        required, weights = list(ADAPTER), list(adapter)
    found = _named(folder, folder, weights) | companion_files(folder) | _named(folder, folder, ABOUT)
    for name in required:
        if name in found:
            continue
        if (folder / name).is_symlink() and (folder / name).exists():
            raise FileNotFoundError(
                f"{folder / name} is a link that leads out of its folder; put a copy in its place."
            )
        remedy = "name the folder of a finished run or saved model"
        if (folder / "recipe.yaml").is_file():
            remedy = "finish its run with --resume, or push one of its checkpoints"
        raise FileNotFoundError(f"{folder} holds no whole model, as {name} is not there; {remedy}.")
    return dict(sorted(found.items()))


def companion_files(folder: str | Path) -> dict[str, Path]:
    """Return what a model needs beside its weights: configuration, code and tokenizers, by their paths in the folder."""
    folder = Path(folder)
    found = _named(folder, folder, (*CONFIGURATION, *_code(folder)))
    for place in (folder, folder / TARGET_TOKENIZER):
        found |= _named(folder, place, TOKENIZER)
        # a tokenizer with several chat templates keeps those that have a name in a folder
        templates = place / CHAT_TEMPLATE_DIR
        names = [p.name for p in templates.iterdir()] if templates.is_dir() else []
        found |= _named(folder, templates, [name for name in names if re.fullmatch(r"\w[\w-]*\.jinja", name)])
    return found


def files_left_out(folder: str | Path) -> list[str]:
    """Return the names in a folder, and in that of its target tokenizer, that [`model_files`] leaves out."""
    folder = Path(folder)
    kept = {path for name in model_files(folder) for path in (Path(name), *Path(name).parents)}
    places = [folder, *(p for p in (folder / TARGET_TOKENIZER, folder / CHAT_TEMPLATE_DIR) if p.is_dir())]
    names = (path.relative_to(folder) for place in places for path in place.iterdir())
    return sorted(f"{name}/" if (folder / name).is_dir() else str(name) for name in names if name not in kept)


def _code(folder: Path) -> set[str]:
    """Return the code of this package in a folder, also of a version that has further files."""
    names, seen = set(CODE), set[str]()
    while new := names - seen:
        seen |= new
        for path in _named(folder, folder, sorted(new)).values():
            imported = re.findall(
                r"^from \.(\w+_vanilla_transformer) import", path.read_text("utf-8", "replace"), re.M
            )
            names |= {f"{name}.py" for name in imported}
    return names


def _named(folder: Path, place: Path, names: list[str] | tuple[str, ...]) -> dict[str, Path]:
    paths = ((place / name, _inside(folder, place / name)) for name in names)
    return {path.relative_to(folder).as_posix(): path for path, inside in paths if inside}


def _inside(folder: Path, path: Path) -> Path | None:
    """Return a path where it is a file in the folder, not a link that leads out of it; else None."""
    if not path.is_file():
        return None
    homes = [folder.resolve()]
    if homes[0].parent.name == "snapshots":  # of the Hub's cache, whose files are links to these
        homes.append(homes[0].parents[1] / "blobs")
    return path if any(path.resolve().is_relative_to(home) for home in homes) else None
