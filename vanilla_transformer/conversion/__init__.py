"""Weights of other Transformers in our model, and ours in theirs, with the same outputs."""

from vanilla_transformer.conversion.convert import from_transformers, to_transformers
from vanilla_transformer.conversion.fairseq import from_fairseq
from vanilla_transformer.conversion.opennmt import from_opennmt
from vanilla_transformer.conversion.weight_mapping import ConversionError

__all__ = ["ConversionError", "from_fairseq", "from_opennmt", "from_transformers", "to_transformers"]
