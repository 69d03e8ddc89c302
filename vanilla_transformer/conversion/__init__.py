"""Weights of other Transformers in our model, and ours in theirs, with the same outputs."""

from .convert import from_transformers, to_transformers
from .links import ConversionError

__all__ = ["ConversionError", "from_transformers", "to_transformers"]
