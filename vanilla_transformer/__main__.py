"""`python -m vanilla_transformer` is the command `vanilla-transformer`."""

from vanilla_transformer.cli import main

if __name__ == "__main__":
    main()
