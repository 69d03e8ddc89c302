"""The demonstration, with a few updates; the whole of it is `make demo`."""

import pytest

pytest.importorskip("babel")

from vanilla_transformer.cli import main
from vanilla_transformer.recipes.recipe import RecipeError

QUICK = (
    "training.max_steps=2",
    "training.eval_strategy=no",
    "training.save_strategy=no",
    "training.load_best_model_at_end=false",
    "generation.max_length_over_source=1",
)


def test_it_trains_translates_and_draws(tmp_path, capsys, monkeypatch):
    from vanilla_transformer import demo

    small = demo.normalization_splits
    monkeypatch.setattr(demo, "normalization_splits", lambda: small(train=2_000, validation=20, test=30))
    with pytest.raises(SystemExit) as done:
        main(["demo", "--output", str(tmp_path / "run"), *QUICK])
    assert done.value.code == 0
    printed = capsys.readouterr().out
    assert "Unseen inputs" in printed
    assert "of 30 unseen inputs exactly right" in printed
    for name in ("model.safetensors", "attention.png", "curves.png", "README.md"):
        assert (tmp_path / "run" / name).stat().st_size > 1000

    with pytest.raises(RecipeError, match="not the demonstration"):
        (tmp_path / "run-data").rename(tmp_path / "elsewhere")
        demo.run_demo(tmp_path / "run")
