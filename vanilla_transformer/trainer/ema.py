"""The exponential moving average of a model's weights over the updates of its training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.optim.swa_utils import get_ema_multi_avg_fn


class MovingAverage:
    """`average = decay * average + (1 - decay) * weights` after each update; after the first it is the weights.

    Weights that share a matrix are averaged once. Processes that train one model together have the same average each.

    Args:
        model: whose weights are averaged.
        decay: above 0 and below 1.

    Raises:
        ValueError: for weights that are not float32, in which what an update adds would be rounded away.
    """

    def __init__(self, model: torch.nn.Module, decay: float):
        self.model = model
        self._average = get_ema_multi_avg_fn(decay)
        self.weights: dict[str, torch.Tensor] = {}
        other = {parameter.dtype for _, parameter in self._trained()} - {torch.float32}
        if other:
            raise ValueError(
                f"averaging.ema needs weights in float32, but those to start from are {other.pop()}; save them in float32, or "
                "leave averaging.ema out."
            )

    def _trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Return what an update changes, by name: of a model with an adapter that alone."""
        return [(name, weight) for name, weight in self.model.named_parameters() if weight.requires_grad]

    def update(self) -> None:
        """Take in the weights after an update."""
        if not self.weights:
            self.start()
            return
        now = [parameter.detach() for _, parameter in self._trained()]
        self._average(list(self.weights.values()), now, 0)

    def start(self) -> None:
        """Make the average what the model's weights are."""
        self.weights = {name: weight.detach().clone() for name, weight in self._trained()}

    @contextmanager
    def applied(self) -> Iterator[dict[str, torch.Tensor]]:
        """Give the model the average as its weights within the block; yield those that it gets back afterwards."""
        trained = {name: weight.detach().clone() for name, weight in self._trained()}
        try:
            self._set(self.weights)
            yield trained
        finally:
            self._set(trained)

    @torch.no_grad()
    def _set(self, weights: dict[str, torch.Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
