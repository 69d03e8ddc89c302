"""The sections of a recipe that say how a run ends, averages, and describes itself; those of the task are in its settings."""

from dataclasses import dataclass

__all__ = ["AveragingSection", "CardSection", "EarlyStoppingSection", "StopSection"]


@dataclass
class AveragingSection:
    """Means of weights (section 6.1), any of which is kept where it scores at least as well as the best checkpoint.

    Attributes:
        last: of the last so many checkpoints; 0 or 1 for none. By default none where one of the others is wanted, else
            what `preset` says, or 5.
        best: of the so many checkpoints with the best `training.metric_for_best_model`, which are not deleted as old
            ones are; 0 or 1 for none.
        ema: decay of an exponential moving average over the updates, such as 0.999, which reaches back some
            1 / (1 - decay) updates; None for none. Evaluations score the average, and checkpoints hold it as their
            model, beside the weights that training continues with.
    """

    last: int | None = None
    best: int = 0
    ema: float | None = None


@dataclass
class EarlyStoppingSection:
    """Training ends before its time where `training.metric_for_best_model`, such as bleu or loss, no longer improves.

    Attributes:
        patience: evaluations in a row without improvement, after which training stops; None for never.
        threshold: what is not better by more than this is no improvement.
    """

    patience: int | None = None
    threshold: float = 0.0


@dataclass
class StopSection:
    """When training has diverged, and ends with an error that names the examples; see `DivergenceRule`.

    Attributes:
        non_finite: when the loss, the gradient norm or a weight is not a finite number; with fp16, when that lasts.
        loss_over_median: when the loss stays above so many times its running median; None for never.
        updates: how many in a row the loss is above it.
    """

    non_finite: bool = True
    loss_over_median: float | None = 3.0
    updates: int = 10


@dataclass
class CardSection:
    """What the model card says beyond what the run knows; may change when a run is resumed.

    Attributes:
        title, description: of the model.
        pipeline_tag: what the Hub lists the model under; by default what the task says, for pairs of texts translation,
            which may be summarization instead.
        intended_use, out_of_scope, limits: for what the model is, for what it is not, and where it is known to fail; beside
            what holds for every model of the task, or in its place.
        license: of the weights, an identifier of the Hub such as `apache-2.0`; None for no licence at all.
        license_name, license_link: with `license: other`, its name, such as `my-license-1.0`, and where it stands: an
            address, or LICENSE for a file of that name that is put into the repository.
        watts: of one processor (core, or accelerator), for the estimate of energy; by default those of an unnamed kind.
        grams_co2_per_kwh: carbon intensity of the electricity; only with it, emissions are estimated, too.
        location: where the machine stands, such as "Quebec, Canada".
    """

    title: str | None = None
    description: str | None = None
    pipeline_tag: str | None = None
    intended_use: str | None = None
    out_of_scope: str | None = None
    limits: str | None = None
    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    watts: float | None = None
    grams_co2_per_kwh: float | None = None
    location: str | None = None
