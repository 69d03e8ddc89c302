# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""What training computes in more than one way with the same results: here by plain operations."""

from typing import Any, ClassVar

from torch import Tensor, nn

from .losses_vanilla_transformer import smoothed_cross_entropy
from .sequences_vanilla_transformer import PaddedBatch


class Kernels:
    """Dropout, layout of batches, and the loss of a language model.

    Attributes:
        used: by every model. Where the package is installed, its `kernels`, which are faster and do not travel.
    """

    used: ClassVar["Kernels"]

    def dropout(self, states: Tensor, p: float, training: bool) -> Tensor:
        """Return `states` without a share `p` of their elements, in training."""
        return nn.functional.dropout(states, p=p, training=training)

    def supports_varlen(self, config: Any, inputs: Tensor, kwargs: dict[str, Any]) -> bool:
        """Whether attention can go sequence by sequence in the forward that gets these `kwargs`, without padding."""
        return False

    def choose_layouts(
        self, config: Any, training: bool, kwargs: dict[str, Any], target: tuple, source: tuple | None = None
    ) -> tuple[PaddedBatch, PaddedBatch]:
        """Return how the layers get inputs, and the sources that they attend to.

        Args:
            kwargs: of the forward.
            target, source: the tensor (B, T, ...), its mask, and its `packed_sequences`.
        """
        return PaddedBatch(), PaddedBatch()

    def projected_cross_entropy(
        self, hidden: Tensor, weight: Tensor, labels: Tensor, bias: Any = None, **options: Any
    ) -> Tensor:
        """Return `smoothed_cross_entropy` of logits `hidden @ weight.T + bias`; hidden (..., D), weight (V, D), bias (V)."""
        return smoothed_cross_entropy(nn.functional.linear(hidden, weight, bias), labels, **options)


Kernels.used = Kernels()


class VanillaTransformerDropout(nn.Dropout):
    """Dropout of the share that a field of the configuration holds, also where that is changed later.

    A share that is set on the module, as by what looks for `nn.Dropout` to turn it off, holds until the field changes.
    """

    def __init__(self, config: Any, field: str):
        self.config, self.field = config, field
        super().__init__(getattr(config, field))

    @property
    def p(self) -> float:
        """Share of elements that is dropped."""
        share = getattr(self.config, self.field)
        return self._own if share == self._replaced else share

    @p.setter
    def p(self, value: float) -> None:
        self._own, self._replaced = value, getattr(self.config, self.field)

    def forward(self, states: Tensor) -> Tensor:
        return Kernels.used.dropout(states, self.p, self.training)
