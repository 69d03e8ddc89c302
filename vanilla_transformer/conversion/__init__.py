"""Weights of other Transformers in our model, and ours in theirs, with the same outputs."""

from .convert import from_transformers, to_transformers
from .links import ConversionError
from .state_dicts import from_fairseq, from_opennmt

__all__ = ["ConversionError", "from_fairseq", "from_opennmt", "from_transformers", "to_transformers"]
