"""Training computed faster than by plain operations, with the same results.

Set for all models when this package is imported. A model that runs by the code of its folder alone trains without.
"""

from vanilla_transformer.kernels_vanilla_transformer import Kernels

from .dropout import dropout
from .loss import chunked_cross_entropy
from .varlen import choose_layouts, supports_varlen

__all__ = ["FastKernels"]


class FastKernels(Kernels):
    """Dropout from fewer random bits, batches without padding, and a loss without all logits at once."""

    dropout = staticmethod(dropout)
    supports_varlen = staticmethod(supports_varlen)
    choose_layouts = staticmethod(choose_layouts)
    projected_cross_entropy = staticmethod(chunked_cross_entropy)  # type: ignore[assignment]


Kernels.used = FastKernels()
