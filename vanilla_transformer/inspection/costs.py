"""Tables of a model's arithmetic for a terminal: parts, costs, cache, and the paper's tables 1 and 3."""

from rich.console import Console
from rich.table import Table

from vanilla_transformer.arithmetic import (
    BYTES,
    Part,
    cache_bytes,
    complexity,
    decoding_multiply_adds,
    forward_multiply_adds,
    list_parts,
    table_3,
    training_flops,
)
from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig

__all__ = ["print_costs", "print_table_3"]


def _table(title: str, *columns: str, left: int = 1) -> Table:
    """Return a table whose first `left` columns are words and the others numbers."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right")
    return table


def print_costs(config: VanillaTransformerConfig, length: int, console: Console) -> None:
    """Print what each part of a model costs, for sequences of `length` tokens on either side.

    Args:
        config: of the model, with its language-modelling head.
        length: T, and S of an encoder-decoder.
        console: to print to.
    """
    forward = forward_multiply_adds(config, length)
    writes = config.architecture != "encoder-only"
    step = decoding_multiply_adds(config, length) if writes else {}
    total = config.num_parameters()

    # parameters
    def name(part: Part) -> str:
        return part.name if part.stack == "output" else f"{part.stack}: {part.name}"

    table = _table("Parameters", "part", "of one", "copies × one", "all", "share", left=2)
    for part in list_parts(config):
        one = f"{part.copies} × {part.parameters:,}"
        table.add_row(name(part), part.formula, one, f"{part.total:,}", f"{part.total / total:.1%}")
    table.add_section()
    table.add_row("total", "", "", f"{total:,}", "")
    console.print(table)

    # matrix products
    table = _table(
        f"Multiply-adds at {length} tokens of either side", "part", "forward pass", "the token written last"
    )
    for part, count in forward.items():
        table.add_row(name(part), f"{count:,}", f"{step[part]:,}" if part in step else "")
    table.add_section()
    table.add_row("total", f"{sum(forward.values()):,}", f"{sum(step.values()):,}" if writes else "")
    console.print(table)
    width = config.hidden_size
    layer = sum(part.parameters for part in list_parts(config) if part.runs > 1 or part.copies > 1)
    console.print(f"12·D² = {12 * width * width:,}; a layer of each stack together has {layer:,} parameters.")
    console.print(
        f"A training step on this sequence: {training_flops(config, length):,} floating-point operations, three times the "
        "forward pass, two for each multiply-add."
    )

    # bytes
    table = _table("Bytes by type", "type", "weights", "cache, a token written", "a token of the source")
    for dtype in BYTES:
        cache = cache_bytes(config, dtype)
        numbers = (f"{cache[side]:,}" if side in cache else "" for side in ("target", "source"))
        table.add_row(dtype, f"{total * BYTES[dtype]:,}", *numbers)
    console.print(table)

    # table 1
    table = _table(
        f"Table 1 of the paper with n = {length}, d = {width}, k = 3",
        *("layer", "complexity", "sequential operations", "longest path"),
    )
    for kind, cost, count, serial, steps, path, hops in complexity(config, length):
        table.add_row(kind, f"{cost} = {count:,}", f"{serial} = {steps:,}", f"{path} = {hops:,}")
    console.print(table)


def print_table_3(console: Console) -> None:
    """Print the parameter counts of table 3 beside those of the formula."""
    table = _table(
        "Table 3 of the paper: parameters with 37,000 tokens, and the vocabulary at which the paper's number is met",
        *("row", "by the formula", "the paper, millions", "met with a vocabulary of"),
    )
    for name, count, millions, agree in table_3():
        met = f"{agree[0]:,} to {agree[1]:,}" if agree else ""
        table.add_row(name, f"{count:,}", "" if millions is None else str(millions), met)
    console.print(table)
