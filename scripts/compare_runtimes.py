"""Compare a translator's runtimes on one text: BLEU, speed, and whether they write the same.

    python scripts/compare_runtimes.py runs/mine --source test.en --target test.de

Exports the model to CTranslate2 and ONNX in float32 and int8, translates the text by greedy search with each and with torch, in
batches of like length, on as many threads as torch has (OMP_NUM_THREADS), and prints a table. Below it stands each sentence that
a runtime writes otherwise in float32, with how much more probable torch's own token was where the two part: near 0 it is a tie.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table
from sacrebleu.metrics import BLEU

from vanilla_transformer.export import to_ctranslate2, to_onnx
from vanilla_transformer.export.ctranslate2_model import vocabularies
from vanilla_transformer.export.ctranslate2_runtime import CTranslate2Runtime
from vanilla_transformer.export.onnx_runtime import OnnxRuntime
from vanilla_transformer.export.parity import gap_of_choices
from vanilla_transformer.generation.text_generator import TextGenerator, encode_input

Rows = list[list[int]]
Write = Callable[[Rows, int], Rows | None]

BATCH_TOKENS = 1024


def batches_by_length(rows: Rows) -> list[list[int]]:
    """Return places of rows, longest first, in batches of at most `BATCH_TOKENS` tokens with padding."""
    batches: list[list[int]] = []
    for place in sorted(range(len(rows)), key=lambda place: -len(rows[place])):
        if batches and (len(batches[-1]) + 1) * len(rows[batches[-1][0]]) <= BATCH_TOKENS:
            batches[-1].append(place)
        else:
            batches.append([place])
    return batches


def translate_rows(write: Write, rows: Rows, margin: int) -> tuple[Rows, float]:
    """Return what is written for each row, at most `margin` tokens more than it has, and the seconds that took."""
    written: Rows = [[] for _ in rows]
    batches = batches_by_length(rows)
    write([rows[place] for place in batches[-1]], 5)  # the first call of a process takes longer
    started = time.perf_counter()
    for batch in batches:
        found = write([rows[place] for place in batch], max(len(rows[place]) for place in batch) + margin)
        for place, tokens in zip(batch, found or [], strict=True):
            written[place] = tokens[: max(1, len(rows[place]) + margin)]
    return written, time.perf_counter() - started


def torch_writer(generator: TextGenerator, dtype: str) -> Write:
    """Return a function that writes with `generate()`, with weights of this dtype."""
    model = generator.model
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])

    def write(rows: Rows, new_tokens: int) -> Rows:
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        options = {"num_beams": 1, "do_sample": False, "max_new_tokens": new_tokens, "decoding_dtype": dtype}
        outputs = model.generate(ids, attention_mask=mask, **options)[:, 1:].tolist()
        stops = [next((i for i, token in enumerate(row) if token in ends), len(row)) for row in outputs]
        return [row[:stop] for row, stop in zip(outputs, stops, strict=True)]

    return write


def size_of(folder: Path, pattern: str) -> str:
    """Return the size of the weights in a folder, in MB."""
    return f"{sum(path.stat().st_size for path in folder.glob(pattern)) / 1e6:.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a run or saved translator")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True, help="references")
    parser.add_argument("--sentences", type=int, default=None, help="so many of the first")
    given = parser.parse_args(arguments)
    sources, references = (
        path.read_text(encoding="utf-8").splitlines()[: given.sentences] for path in (given.source, given.target)
    )
    generator = TextGenerator.from_pretrained(given.model, "cpu")
    model, tokenizer, target_tokenizer = generator.model, generator.tokenizer, generator.target_tokenizer
    rows = [encode_input(tokenizer, text, is_prompt=False) for text in sources]
    margin = getattr(model.generation_config, "max_length_over_source", None)
    margin = 50 if margin is None else margin
    tokens = vocabularies(model, tokenizer, target_tokenizer)  # type: ignore[arg-type]

    # write the text with each runtime
    table = Table("runtime", "weights", "size (MB)", "BLEU", "sentences/s", "same as torch float32")
    results: dict[tuple[str, str], Rows] = {}
    with TemporaryDirectory() as temporary:
        for runtime, weights in product(("torch", "CTranslate2", "onnxruntime"), ("float32", "int8")):
            folder = Path(temporary) / f"{runtime}-{weights}"
            if runtime == "torch":
                write, size = torch_writer(generator, weights), size_of(Path(given.model), "*.safetensors")
            elif runtime == "CTranslate2":
                to_ctranslate2(model, tokenizer, folder, weights, target_tokenizer=target_tokenizer)  # type: ignore[arg-type]
                write = CTranslate2Runtime(folder, "encoder-decoder", tokens, weights).write
                size = size_of(folder, "*.bin")
            else:
                to_onnx(model, tokenizer, folder, weights, target_tokenizer=target_tokenizer)  # type: ignore[arg-type]
                write = OnnxRuntime(folder, model, weights).write  # type: ignore[arg-type]
                size = size_of(folder, "onnx/*.onnx")
            written, seconds = translate_rows(write, rows, margin)
            results[runtime, weights] = written
            texts = target_tokenizer.batch_decode(written, skip_special_tokens=True)
            same = sum(one == other for one, other in zip(written, results["torch", "float32"], strict=True))
            table.add_row(
                runtime,
                weights,
                size,
                f"{BLEU().corpus_score(texts, [references]).score:.2f}",
                f"{len(rows) / seconds:.1f}",
                f"{100 * same / len(rows):.1f} %",
            )
    Console().print(table)

    # explain what differs in float32
    exact = results["torch", "float32"]
    for runtime in ("CTranslate2", "onnxruntime"):
        for number, (row, one, other) in enumerate(zip(rows, exact, results[runtime, "float32"], strict=True), 1):
            if one != other:
                gap = gap_of_choices(model, row, one, other)  # type: ignore[arg-type]
                reason = "one is longer" if gap is None else f"torch's token has a log-probability higher by {gap:.2g}"
                print(f"{runtime} float32, line {number}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
