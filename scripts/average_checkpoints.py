#!/usr/bin/env python
"""Average checkpoints: `python scripts/average_checkpoints.py RUN --last 5 --output FOLDER`.

The same as `vanilla-transformer average`.
"""

import sys

from vanilla_transformer.cli import main

if __name__ == "__main__":
    main(["average", *sys.argv[1:]])
