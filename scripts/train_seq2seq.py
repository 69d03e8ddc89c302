#!/usr/bin/env python
"""Train an encoder-decoder from a recipe: `python scripts/train_seq2seq.py RECIPE.yaml [name=value ...] [--resume]`.

The same as `vanilla-transformer train`; also for `accelerate launch` and `torchrun`.
"""

import sys

from vanilla_transformer.cli import main

if __name__ == "__main__":
    main(["train", "--task", "seq2seq", *sys.argv[1:]])
