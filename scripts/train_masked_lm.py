#!/usr/bin/env python
"""Train a language model from a recipe for masked-lm: `python scripts/train_masked_lm.py RECIPE.yaml [name=value ...] [--resume]`.

The same as `vanilla-transformer train`; also for `accelerate launch` and `torchrun`.
"""

import sys

from vanilla_transformer.cli import main

if __name__ == "__main__":
    main(["train", "--task", "masked-lm", *sys.argv[1:]])
