"""COMET, a score that a model gives to source, output and reference (Rei et al. 2020), through its own package."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from vanilla_transformer.utils.extras import needs

__all__ = ["check_comet", "comet_scores"]


def check_comet(references: int, has_source: bool) -> None:
    """Refuse what COMET cannot score, before any work.

    Raises:
        ImportError: where its package is not installed.
        ValueError: without sources, or with several references.
    """
    with needs("--comet"):
        import comet  # noqa: F401
    if not has_source:
        raise ValueError("COMET also reads the sources; give them with --source.")
    if references != 1:
        raise ValueError(f"COMET compares with one reference, not {references}; give one.")


def comet_scores(
    model: str, systems: Mapping[str, Sequence[str]], references: Sequence[str], sources: Sequence[str]
) -> dict[str, float]:
    """Return the system score of each system.

    Args:
        model: a checkpoint (`.ckpt`), which COMET unpickles, so it must be one that you trust; or a name that COMET
            downloads, such as Unbabel/wmt22-comet-da.
        systems, references, sources: texts, line by line.
    """
    import torch
    from comet import download_model, load_from_checkpoint

    loaded = load_from_checkpoint(model if Path(model).is_file() else download_model(model))
    scores = {}
    for name, hypotheses in systems.items():
        rows = [
            {"src": source, "mt": hypothesis, "ref": reference}
            for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True)
        ]
        output = loaded.predict(rows, batch_size=16, gpus=int(torch.cuda.is_available()), progress_bar=False)
        scores[name] = round(float(output.system_score), 4)
    return scores
