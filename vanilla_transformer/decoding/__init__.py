"""Fast decoding on a processor: what `generate()` runs where it can, with the tokens of the ordinary path.

`eligibility` says whether a model and a call can be served and why not; `products` multiplies few rows by weights laid out
for that; `weights` prepares them and notices when the model's have changed; `cache` holds keys and values; `engine` runs
the encoder, the prompt and the steps; `sampling` and `beam_search` choose tokens, with what `scores` knows of processors.

The files that travel with a checkpoint know none of this: importing the package sets
`VanillaTransformerGenerationMixin.decoding_backend`, and without it they decode as transformers does.
"""

from vanilla_transformer import modeling_vanilla_transformer  # noqa: F401, first: importing it imports the backend
from vanilla_transformer.decoding.backend import DecodingReport, FastDecoding
from vanilla_transformer.decoding.shortlist import Shortlist

__all__ = ["DecodingReport", "FastDecoding", "Shortlist"]
