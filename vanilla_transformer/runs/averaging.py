"""Checkpoint averaging (section 6.1): the mean of the weights of several checkpoints of one run."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from vanilla_transformer.loading import WEIGHTS, open_weights, weight_files
from vanilla_transformer.model_files import companion_files
from vanilla_transformer.trainer.adapter import ADAPTER_WEIGHTS
from vanilla_transformer.utils.atomic import atomic_dir, check_output_dir, translate_io_errors
from vanilla_transformer.utils.locks import check_unlocked


def average_weights(folders: Sequence[str | Path]) -> dict[str, torch.Tensor]:
    """Return the mean of every weight over the checkpoints, summed in float64; of weights that are not floats the last one's.

    Raises:
        ValueError: without checkpoints, or where their weights differ in name or shape; it names both folders.
        FileNotFoundError: for a folder without safetensors weights.
    """
    if not folders:
        raise ValueError("there are no checkpoints to average.")
    total: dict[str, torch.Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for position, folder in enumerate(map(Path, folders)):
        files = weight_files(folder) or [path for path in (folder / ADAPTER_WEIGHTS,) if path.is_file()]
        if not files:
            raise FileNotFoundError(f"{folder} holds no {WEIGHTS}; give folders saved by a run or save_pretrained.")
        seen = set()
        for file in files:
            with open_weights(file) as weights:
                for name in weights.keys():  # noqa: SIM118 - not a dict
                    tensor = weights.get_tensor(name)
                    seen.add(name)
                    dtypes[name] = tensor.dtype
                    if position and (name not in total or total[name].shape != tensor.shape):
                        raise ValueError(
                            f"{folder} does not fit {folders[0]}: weight {name} is not the same in both, so they are "
                            "not checkpoints of one model."
                        )
                    if not tensor.is_floating_point():
                        total[name] = tensor
                    elif position:
                        total[name] += tensor
                    else:
                        total[name] = tensor.double()
        if missing := total.keys() - seen:
            raise ValueError(f"{folder} does not fit {folders[0]}: it lacks the weight {min(missing)}.")
    count = len(folders)
    return {
        name: (tensor / count).to(dtypes[name]) if tensor.is_floating_point() else tensor
        for name, tensor in total.items()
    }


def average_checkpoints(folders: Sequence[str | Path], output: str | Path) -> Path:
    """Write a model folder with the mean weights and the last checkpoint's configuration and tokenizer files.

    The folder is written atomically.

    Raises:
        ValueError, FileNotFoundError: as [`average_weights`].
        FileExistsError: where `output` already holds a model.
        FolderInUse: where `output` is the folder of a run that is being trained, or in one.
        OSError: where it cannot be written.
    """
    check_unlocked(Path(output))
    if adapters := next((folder for folder in map(Path, folders) if (folder / ADAPTER_WEIGHTS).is_file()), None):
        raise ValueError(
            f"{adapters} holds an adapter and no whole model; averaging.last or averaging.best in its recipe average adapters."
        )
    output = check_output_dir(output)
    weights = average_weights(folders)
    with translate_io_errors(output, "make room and average again"), atomic_dir(output) as temporary:
        for name, path in companion_files(folders[-1]).items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, temporary / name)
        save_file(weights, temporary / WEIGHTS, metadata={"format": "pt"})
    return output
