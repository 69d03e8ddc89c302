#!/usr/bin/env python
"""Train a classifier of texts or of tokens from a recipe: `python scripts/train_classifier.py RECIPE.yaml [name=value ...]`.

The same as `vanilla-transformer train`; also for `accelerate launch` and `torchrun`.
"""

import sys

from vanilla_transformer.cli import main

if __name__ == "__main__":
    main(["train", "--task", "sequence-classification", "--task", "token-classification", *sys.argv[1:]])
