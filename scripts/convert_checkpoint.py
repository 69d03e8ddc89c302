#!/usr/bin/env python
"""Convert a checkpoint: `python scripts/convert_checkpoint.py Helsinki-NLP/opus-mt-en-de runs/opus-mt-en-de`.

The same as `vanilla-transformer convert`.
"""

import sys

from vanilla_transformer.cli import main

if __name__ == "__main__":
    main(["convert", *sys.argv[1:]])
