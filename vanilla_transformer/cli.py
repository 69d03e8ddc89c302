"""The command `vanilla-transformer`: train, use and look at models from the shell.

What reads data or trains is imported by the command that needs it, and after its arguments are checked.
"""

import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from vanilla_transformer.errors import DivergedError, RunInterrupted
from vanilla_transformer.utils.atomic import (
    atomic_file,
    atomic_files,
    check_output_dir,
    check_output_file,
    translate_io_errors,
)
from vanilla_transformer.utils.bounds import GENERATION
from vanilla_transformer.utils.errors import (
    ClosedStreamError,
    describe,
    friendly_errors,
    interruption,
    printable,
)
from vanilla_transformer.utils.extras import needs

if TYPE_CHECKING:
    from vanilla_transformer import VanillaTransformerConfig
    from vanilla_transformer.decoding import Shortlist
    from vanilla_transformer.generation.text_generator import Hypothesis, TextGenerator
    from vanilla_transformer.scoring import TextScores

LONGEST_LINE = 10_000_000
"""Bytes of a line of a text file; what is longer is no sentence, and would fill the memory."""


class _Commands(TyperGroup):
    """Commands whose truncated files are errors, of which typer makes "aborted"."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EOFError as error:
            raise OSError(f"a file ends too soon: {error or 'it is empty or cut short'}") from error


app = typer.Typer(
    cls=_Commands,
    name="vanilla-transformer",
    help="Transformers trained from scratch: from two text files to a model that anyone can load.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # whose import takes longer than all else that help needs
    context_settings={"help_option_names": ["-h", "--help"]},
)

ModelOption = Annotated[str, typer.Option("--model", "-m", help="Folder of a run or saved model, or a Hub id.")]
RevisionOption = Annotated[str | None, typer.Option("--revision", help="Of a Hub id: a branch, tag or commit.")]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="Such as cpu or cuda:1; by default the accelerator where there is one.")
]
TrustOption = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model; only of people you trust.")
]
BeamsOption = Annotated[
    int | None,
    typer.Option("--num-beams", min=1, max=GENERATION["num_beams"].high, help="Default: the model's own setting."),
]
DtypeOption = Annotated[
    str | None,
    typer.Option("--dtype", help="Of the weights, on a CPU: float32, bfloat16 or int8. Default: the model's own."),
]


def _log(line: str) -> None:
    typer.echo(line, err=True)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    # the sentence of the application stands at the top of its help
    if version:
        from vanilla_transformer import __version__

        typer.echo(f"vanilla-transformer {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help="A YAML recipe; one to begin with prints `recipe NAME`.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Fields to override: name=value, as in training.max_steps=1000.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Resume from the last checkpoint of the output folder.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Delete the run in the output folder and start again.")] = False,
    task: Annotated[list[str] | None, typer.Option(help="Refuse a recipe for any other task than these.")] = None,
) -> None:
    """Train what a recipe describes, score it, and leave a folder that anyone can load."""
    _check_names(recipe, overrides or [])
    from vanilla_transformer.recipes.recipe import Recipe

    loaded = Recipe.load(recipe, overrides or [])
    if task and loaded.task not in task:
        raise ValueError(f"{recipe} is a recipe for {loaded.task}, not for {' or '.join(task)}.")
    _quiet_libraries()
    from vanilla_transformer.runs.run import run_recipe

    run_recipe(loaded, resume=resume, overwrite=overwrite, log=_log)


@app.command()
def ablate(
    recipe: Annotated[Path, typer.Argument(help="A recipe with an ablation section.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Fields to override: name=value, as in ablation.seeds=[1,2].")
    ] = None,
    resume: Annotated[
        bool, typer.Option(help="Keep what is finished in the output folder and resume the rest.")
    ] = False,
    overwrite: Annotated[bool, typer.Option(help="Delete the ablation in the output folder and start again.")] = False,
) -> None:
    """Train a recipe and variants of it on the same data for as long, and print what each choice is worth."""
    _check_names(recipe, overrides or [])
    from vanilla_transformer.runs.ablation import Ablation
    from vanilla_transformer.runs.ablation_runs import run_ablation
    from vanilla_transformer.runs.ablation_table import print_table

    loaded = Ablation.load(recipe, overrides or [])
    _quiet_libraries()
    table = run_ablation(loaded, resume=resume, overwrite=overwrite, log=_log)
    print_table(table)
    if any(run["status"] != "finished" for cell in table["cells"] for run in cell["runs"]):
        raise typer.Exit(1)


@app.command("recipe")
def recipe_command(
    name: Annotated[str | None, typer.Argument(help="Of a recipe that comes with the package; see --list.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="The names of all, with what they are.")] = False,
    fields: Annotated[bool, typer.Option("--fields", help="Every field, its default and its meaning.")] = False,
) -> None:
    """Print a recipe to begin with: vanilla-transformer recipe NAME > my.yaml"""
    from vanilla_transformer.recipes.bundled_recipes import describe_fields, recipe_text, recipes

    if (name is not None) + show_list + fields != 1:
        raise ValueError("name a recipe, or give --list or --fields.")
    if name is not None:
        typer.echo(recipe_text(name), nl=False)
    for known, path in recipes().items() if show_list else ():
        typer.echo(f"{known:28}{path.read_text(encoding='utf-8').partition(chr(10))[0].removeprefix('# ')}")
    for field, default, meaning in describe_fields() if fields else ():
        typer.echo(f"{field}: {default}" + (f"  # {meaning}" if meaning else ""))


@app.command("train-tokenizer")
def train_tokenizer_command(
    texts: Annotated[list[Path], typer.Argument(help="UTF-8 text files, one sentence a line.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the tokenizer.")],
    vocab_size: Annotated[int, typer.Option(help="Exact number of entries, special tokens included.")] = 10000,
    lowercase: Annotated[bool, typer.Option(help="Lower the case of all text.")] = False,
) -> None:
    """Train a byte-level BPE tokenizer that AutoTokenizer loads."""
    output = check_output_dir(output, empty=False)
    for path in texts:
        _open_input(str(path)).close()
    from vanilla_transformer.tokenization import train_tokenizer

    def lines() -> Iterator[str]:
        for path in texts:
            with _open_input(str(path)) as stream:
                yield from _lines(stream, str(path))

    tokenizer = train_tokenizer(lines(), vocab_size, lowercase=lowercase)
    with translate_io_errors(output, "make room and train it again"), atomic_files(output) as temporary:
        tokenizer.save_pretrained(temporary)
    _log(f"{len(tokenizer):,} entries saved in {output}")


@app.command()
def generate(
    model: ModelOption,
    input: Annotated[str, typer.Option("--input", "-i", help="A text file, one source a line; - for stdin.")] = "-",
    output: Annotated[str, typer.Option("--output", "-o", help="Where the outputs go; - for stdout.")] = "-",
    num_beams: BeamsOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
    n_best: Annotated[
        int,
        typer.Option(min=1, help="Outputs of each source; more than 1 as `line ||| text ||| score`, lines from 0."),
    ] = 1,
    scores: Annotated[bool, typer.Option(help="Write the score behind each output, after a tab.")] = False,
    length_penalty: Annotated[float | None, typer.Option(help="Default: the model's own setting.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Default: the model's own setting.")
    ] = None,
    shortlist: Annotated[
        bool, typer.Option("--shortlist", help="Write only tokens that training saw beside the source's; faster.")
    ] = False,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw tokens at random, as language models are read.")
    ] = False,
    temperature: Annotated[float | None, typer.Option(help="Of --sample; default 1.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Of --sample.")] = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Source tokens of a batch; more on a GPU.")] = 1024,
    read_ahead: Annotated[
        int | None,
        typer.Option(min=1, max=10**9, help="Lines read before the first answer; 1 in a terminal, else 1024."),
    ] = None,
) -> None:
    """Write one line of output for each line of input, in the same order; of a language model its continuation."""
    # what may be refused, before the model is loaded
    for option, value, bound in (
        ("--length-penalty", length_penalty, GENERATION["length_penalty"]),
        ("--temperature", temperature, GENERATION["temperature"]),
    ):
        if value is not None and not bound.admits(value):
            raise ValueError(f"{option} {value} must be {bound.describe()}.")
    if output != "-":
        check_output_file(output)
    source = _open_input(input)
    _quiet_libraries()
    from vanilla_transformer.generation.text_generator import TextGenerator, check_generation_options

    options: dict[str, Any] = {
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "max_new_tokens": max_new_tokens,
        "do_sample": sample or None,
        "temperature": temperature,
    }
    check_generation_options(options)
    if not sample and (temperature is not None or seed is not None):
        raise ValueError("--temperature and --seed have an effect only with --sample.")
    generator = TextGenerator.from_pretrained(model, device, revision=revision, trust_remote_code=trust_remote_code)
    _optimize(generator, dtype)
    if shortlist:
        options["shortlist"] = _load_shortlist(model, revision)
    if seed is not None:
        from transformers import set_seed

        set_seed(seed)
    # the outputs, as they come
    results = generator.generate(
        _lines(source, input),
        n_best=n_best,
        scores=scores or n_best > 1,
        max_batch_tokens=batch_tokens,
        log=_log,
        read_ahead=read_ahead or (1 if source.isatty() else 1024),
        **{name: value for name, value in options.items() if value is not None},
    )
    with _output(output) as sink:
        for number, hypotheses in enumerate(results):
            for hypothesis in hypotheses:
                sink.write(_output_line(number, hypothesis, n_best, scores))
            sink.flush()
    _log_unoptimized(generator, dtype, shortlist)


def _optimize(generator: "TextGenerator", dtype: str | None) -> None:
    """Let a model decode with weights of `dtype`, where one is given."""
    if dtype is None:
        return
    optimize = getattr(generator.model, "optimize_for_inference", None)
    if optimize is None:
        raise ValueError(f"--dtype has no effect for a {type(generator.model).__name__}; leave it out.")
    optimize(dtype)


def _load_shortlist(model: str, revision: str | None) -> "Shortlist":
    from vanilla_transformer.decoding import Shortlist
    from vanilla_transformer.decoding.shortlist import SHORTLIST
    from vanilla_transformer.loading import locate

    path = locate(model, revision=revision).file(SHORTLIST)
    if path is None:
        raise FileNotFoundError(
            f"{model} holds no {SHORTLIST}, as runs on pairs of texts save it; leave --shortlist out."
        )
    return Shortlist.load(path)


def _log_unoptimized(generator: "TextGenerator", dtype: str | None, shortlist: bool = False) -> None:
    """Warn where the last batch was not decoded as these options ask, and say why."""
    decoding = getattr(generator.model, "last_decoding", None)
    if decoding is not None and decoding.path != "fast":
        for option in [f"--dtype {dtype}"] * (dtype is not None) + ["--shortlist"] * shortlist:
            _log(f"warning: {option} had no effect, since {decoding.reason}.")


class _ListOptions(TyperCommand):
    """A command whose options of several values take them one after another: `--references a b`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        lists = {name for parameter in self.params if getattr(parameter, "multiple", False) for name in parameter.opts}
        option = ""
        spelled_out: list[str] = []
        for argument in args:
            if argument.startswith("-") and argument != "-":
                option = argument if argument in lists else ""
            elif option and spelled_out[-1] != option:
                spelled_out.append(option)
            spelled_out.append(argument)
        return super().parse_args(ctx, spelled_out)


TokenizeOption = Annotated[
    str, typer.Option("--tokenize", help="sacrebleu's tokenizer for BLEU; none for tokenized text.")
]
LowercaseOption = Annotated[bool, typer.Option("--lowercase", help="Compare without regard to case.")]
MetricsOption = Annotated[
    list[str] | None, typer.Option("--metrics", help="Of bleu, chrf, ter, exact_match, wer, cer; by default all.")
]
ResamplesOption = Annotated[
    int | None,
    typer.Option(
        "--resamples", min=0, help="Bootstrap resamples for confidence intervals and significance; 0 for none. [1000]"
    ),
]
CometOption = Annotated[
    str | None,
    typer.Option(
        "--comet", help="Also COMET, by this model: a checkpoint that you trust, or a name that it downloads."
    ),
]


@app.command(cls=_ListOptions)
def score(
    hypotheses: Annotated[
        list[str], typer.Option("--hypotheses", help="Outputs of one or more systems, a file each; - for stdin.")
    ],
    references: Annotated[list[str], typer.Option("--references", help="One or more files of references.")],
    source: Annotated[str | None, typer.Option("--source", help="The sources, which --comet reads.")] = None,
    tokenize: TokenizeOption = "13a",
    lowercase: LowercaseOption = False,
    metrics: MetricsOption = None,
    resamples: ResamplesOption = None,
    comet: CometOption = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the JSON to this file.")] = None,
) -> None:
    """Score texts against references, line by line; of several systems, say whether they differ from the first."""
    from vanilla_transformer.scoring.command import ScoringOptions, score_files

    options = ScoringOptions(tokenize, lowercase, metrics, resamples, comet)
    with _output("-" if output is None else str(output)) as sink:
        _print_scores(score_files(hypotheses, references, source, options, _log), references, sink)


@app.command(cls=_ListOptions)
def evaluate(
    source: Annotated[str, typer.Option(help="Text file with one source a line.")],
    target: Annotated[list[str], typer.Option("--target", "--references", help="One or more files of references.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Folder of a run or saved model, or a Hub id.")
    ] = None,
    hypotheses: Annotated[
        list[str] | None, typer.Option("--hypotheses", help="Outputs that are there already, instead of a model.")
    ] = None,
    num_beams: BeamsOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
    tokenize: TokenizeOption = "13a",
    lowercase: LowercaseOption = False,
    metrics: MetricsOption = None,
    resamples: ResamplesOption = None,
    comet: CometOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the outputs to this file, a line each.")
    ] = None,
) -> None:
    """Score a model's output on parallel text, as JSON: BLEU, chrF and others, with signatures and intervals."""
    import json

    from vanilla_transformer.scoring.command import ScoringOptions, read_parallel, score_files, score_outputs

    if output is not None:
        check_output_file(output)
    options = ScoringOptions(tokenize, lowercase, metrics, resamples, comet)
    # without a model
    if (model is None) == (not hypotheses):
        raise ValueError("give either a --model, or --hypotheses that are there already.")
    if model is None:
        given: dict[str, Any] = {"--num-beams": num_beams, "--dtype": dtype, "--device": device}
        given |= {"--revision": revision, "--output": output}
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} has an effect only with --model; leave it out.")
        _print_scores(score_files(hypotheses or [], target, source, options, _log), target, sys.stdout)
        return
    # with one: what may be refused before it is loaded, its outputs, their scores
    generate_options: dict[str, Any] = {} if num_beams is None else {"num_beams": num_beams}
    from vanilla_transformer.generation.text_generator import TextGenerator, check_generation_options
    from vanilla_transformer.loading import check_device

    check_device(device)
    check_generation_options(generate_options)
    notes: list[str] = []  # said when the model is there, too: what is refused ends in one sentence
    sources, references, options = read_parallel(source, target, options, notes.append)
    _quiet_libraries()
    generator = TextGenerator.from_pretrained(model, device, revision=revision, trust_remote_code=trust_remote_code)
    _optimize(generator, dtype)
    for note in notes:
        _log(note)
    outputs = [_one_line(best[0].text) for best in generator.generate(sources, log=_log, **generate_options)]
    _log_unoptimized(generator, dtype)
    if output is not None:
        with atomic_file(output) as sink:
            sink.writelines(f"{text}\n" for text in outputs)
    (scores,) = score_outputs({model: outputs}, references, sources, options)
    print(json.dumps(scores.to_dict(), indent=2))


def _print_scores(scores: "list[TextScores]", references: list[str], sink: IO[str]) -> None:
    """Write JSON, to stdout or a file, and print a table to stderr or, where that is free, to stdout."""
    import json

    from rich.console import Console

    from vanilla_transformer.scoring.report import scores_table, scores_to_json

    sink.write(json.dumps(scores_to_json(scores, references), indent=2) + "\n")
    Console(stderr=sink is sys.stdout).print(scores_table(scores))


@app.command()
def average(
    checkpoints: Annotated[
        list[Path], typer.Argument(help="Checkpoint folders, or one run folder for its last checkpoints.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the averaged model.")],
    last: Annotated[
        int | None, typer.Option(min=1, help="Of a run folder: so many of the last, 5 by default.")
    ] = None,
    best: Annotated[int | None, typer.Option(min=1, help="Of a run folder: so many of the best instead.")] = None,
    metric: Annotated[
        str | None, typer.Option(help="The score that --best goes by, such as bleu; by default the run's own.")
    ] = None,
) -> None:
    """Average the weights of checkpoints of one run (section 6.1)."""
    from vanilla_transformer.runs.averaging import average_checkpoints
    from vanilla_transformer.trainer.checkpoints import best_checkpoints_of_run, find_checkpoints

    if last is not None and best is not None:
        raise ValueError("--last and --best choose different checkpoints of a run; give one of them.")
    if metric is not None and best is None:
        raise ValueError("--metric says which checkpoints are the best; give it with --best.")
    folders = checkpoints
    if len(checkpoints) == 1 and not checkpoints[0].name.startswith("checkpoint-"):
        run = checkpoints[0]
        if not find_checkpoints(run):
            raise ValueError(f"{run} holds no checkpoint-N folders; give checkpoint folders themselves.")
        folders = find_checkpoints(run)[-(last or 5) :] if best is None else best_checkpoints_of_run(run, best, metric)
    elif last is not None or best is not None:
        raise ValueError(
            "--last and --best choose from the folder of a run, but checkpoints were given; leave them out."
        )
    average_checkpoints(folders, output)
    _log(f"mean of {', '.join(folder.name for folder in folders)} saved in {output}")


@app.command()
def convert(
    model: Annotated[str, typer.Argument(help="Folder or Hub id of a model, or a checkpoint of --kind.")],
    output: Annotated[Path, typer.Argument(help="Folder for the converted model.")],
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
    to_transformers: Annotated[
        bool, typer.Option("--to-transformers", help="The other way: a model of ours to a class of transformers.")
    ] = False,
    family: Annotated[
        str | None, typer.Option(help="Of --to-transformers, such as marian; by default the first that fits.")
    ] = None,
    kind: Annotated[str, typer.Option(help="transformers, fairseq or opennmt.")] = "transformers",
    source_dictionary: Annotated[Path | None, typer.Option(help="Of fairseq: dict.src.txt.")] = None,
    target_dictionary: Annotated[Path | None, typer.Option(help="Of fairseq: dict.trg.txt.")] = None,
) -> None:
    """Turn a model of another kind into one of ours, or back, and check that both compute the same."""
    if family is not None and not to_transformers:
        raise ValueError("--family says what --to-transformers makes; give both.")
    if kind != "transformers" and (to_transformers or revision is not None):
        raise ValueError(f"--kind {kind} reads a file; --to-transformers and --revision have no effect there.")
    if kind != "fairseq" and (source_dictionary is not None or target_dictionary is not None):
        raise ValueError("--source-dictionary and --target-dictionary are those of --kind fairseq.")
    _quiet_libraries()
    from vanilla_transformer.conversion.folders import convert_folder

    convert_folder(
        model,
        output,
        revision=revision,
        to_transformers=to_transformers,
        family=family,
        kind=kind,
        source_dictionary=source_dictionary,
        target_dictionary=target_dictionary,
        trust_remote_code=trust_remote_code,
        log=_log,
    )


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="Folder of a run or saved model, or a Hub id.")],
    output: Annotated[Path, typer.Argument(help="Folder for the exported model.")],
    to: Annotated[str, typer.Option("--to", help="ctranslate2, onnx, gguf or transformers.")],
    quantization: Annotated[
        str, typer.Option(help="Of the weights: float32, float16, int8; of ctranslate2 also its others.")
    ] = "float32",
    family: Annotated[
        str | None, typer.Option(help="Of --to transformers, such as marian; by default the first that fits.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="A text file, one source a line, to compare on beside random tokens.")
    ] = None,
    page: Annotated[
        bool,
        typer.Option("--page", help="Of --to onnx: also a page that translates in the browser, by transformers.js."),
    ] = False,
    revision: RevisionOption = None,
) -> None:
    """Write a model for another runtime, and check that it computes the same there."""
    texts: list[str] = []
    if check is not None:
        with _open_input(str(check)) as stream:
            texts = list(_lines(stream, str(check)))
    _quiet_libraries()
    from vanilla_transformer.export import export_folder

    export_folder(
        model,
        output,
        to,
        quantization=quantization,
        family=family,
        revision=revision,
        texts=texts,
        page=page,
        log=_log,
    )


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished run or saved model.")],
    repo_id: Annotated[str, typer.Argument(help="Where it goes on the Hub, such as me/my-model.")],
    private: Annotated[
        bool, typer.Option("--private", help="Where a repository is made, for your eyes only.")
    ] = False,
    revision: Annotated[str | None, typer.Option(help="A branch; by default the main one.")] = None,
    token: Annotated[
        str | None, typer.Option(help="By default that of `hf auth login`, or the environment variable HF_TOKEN.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the files that would be pushed.")] = False,
) -> None:
    """Share a model: its weights, tokenizer, code and card, without checkpoints, in one commit."""
    from vanilla_transformer.hub import push_folder
    from vanilla_transformer.model_files import files_left_out, model_files

    files, others = model_files(folder), files_left_out(folder)
    if dry_run:
        from huggingface_hub.utils import validate_repo_id

        validate_repo_id(repo_id)
        sizes = {name: path.stat().st_size for name, path in files.items()}
        for name, size in sizes.items():
            typer.echo(f"{size:>15,}  {name}")
        typer.echo(f"{sum(sizes.values()):>15,}  bytes in {len(sizes)} files would be pushed to {repo_id}")
    if others:
        more = f" and {len(others) - 20} more" if len(others) > 20 else ""
        _log(f"left out: {printable(', '.join(others[:20]))}{more}")
    if dry_run:
        return
    _quiet_libraries()
    commit = push_folder(folder, repo_id, private=private or None, revision=revision, token=token)
    _log(f"pushed: {commit.commit_url}")


@app.command()
def inspect(
    model: ModelOption,
    source: Annotated[str, typer.Argument(help="A source text.")],
    target: Annotated[str | None, typer.Argument(help="A target; by default what the model writes.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture.")] = Path("attention.png"),
    kind: Annotated[str, typer.Option(help="cross, encoder or decoder.")] = "cross",
    layer: Annotated[int, typer.Option(help="A layer, from 0; -1 is the last.")] = -1,
    each_head: Annotated[bool, typer.Option(help="One picture a head instead of their mean.")] = False,
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
) -> None:
    """Draw what a model attends to while it writes."""
    if kind not in ("cross", "encoder", "decoder"):
        raise ValueError(f"--kind {kind} is unknown; it is cross, encoder or decoder.")
    from vanilla_transformer.utils.pictures import picture_format

    picture_format(output)
    check_output_file(output)
    _quiet_libraries()
    from vanilla_transformer.generation.text_generator import TextGenerator
    from vanilla_transformer.inspection.attention import attention_maps, plot_attention

    generator = TextGenerator.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)
    maps = attention_maps(
        generator.model, generator.tokenizer, source, target, target_tokenizer=generator.target_tokenizer
    )
    plot_attention(maps, output, kind=kind, layer=layer, head="each" if each_head else None)  # type: ignore[arg-type]
    _log(f"attention drawn in {output}")


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="Folder of a run or saved model of any task, or a Hub id.")],
    host: Annotated[str, typer.Option(help="Address to listen to; 0.0.0.0 for all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for a free one.")] = 5000,
    device: DeviceOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
    backend: Annotated[str, typer.Option(help="What computes: torch or ctranslate2.")] = "torch",
    quantization: Annotated[
        str, typer.Option(help="Of the weights of --backend ctranslate2, such as int8.")
    ] = "float32",
    api_key: Annotated[
        str | None,
        typer.Option(envvar="VANILLA_TRANSFORMER_API_KEY", help="That clients must send; better in the environment."),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name in the header Host that is answered; by default, of a local address, only local names."
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Origin whose web pages may use the server, such as https://my.page.")
    ] = None,
    source_language: Annotated[str | None, typer.Option(help="Code for /languages; by default the run's.")] = None,
    target_language: Annotated[str | None, typer.Option(help="Code for /languages; by default the run's.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Largest number of tokens of an output.")] = 512,
    max_body_bytes: Annotated[int, typer.Option(min=1, help="Largest body of a request.")] = 1 << 20,
    max_texts: Annotated[int, typer.Option(min=1, help="Texts of a request.")] = 128,
    max_waiting: Annotated[int, typer.Option(min=1, help="Texts that may wait for the model.")] = 1024,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a batch; more on a GPU.")] = 1024,
    timeout: Annotated[float, typer.Option(min=0.1, max=86400, help="Seconds until a request is given up.")] = 60.0,
) -> None:
    """Answer requests over HTTP: translations (as LibreTranslate does), completions and chats (as OpenAI does), predictions."""
    _quiet_libraries()
    with needs("the server"):
        from vanilla_transformer.serving.command import serve as run_server
        from vanilla_transformer.serving.settings import ServerSettings
    settings = ServerSettings(
        api_key=api_key,
        allowed_hosts=tuple(name.lower() for name in allowed_host) if allowed_host else None,
        cors_origins=tuple(cors_origin or ()),
        source_language=source_language,
        target_language=target_language,
        max_new_tokens=max_new_tokens,
        max_body_bytes=max_body_bytes,
        max_texts=max_texts,
        max_waiting=max_waiting,
        max_batch_tokens=batch_tokens,
        timeout=timeout,
    )
    # what the model is loaded with
    loading = {"device": device, "revision": revision, "trust_remote_code": trust_remote_code, "backend": backend}
    loading["quantization"] = quantization
    run_server(model, settings, host=host, port=port, log=_log, **loading)


@app.command()
def explain(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A preset, else a folder with a config.json or a Hub id; ./NAME for a folder named as one."
        ),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="All presets, with parameters and source.")] = False,
    costs: Annotated[
        bool,
        typer.Option("--costs", help="Parameters, products, bytes and table 1, part by part, at --length tokens."),
    ] = False,
    length: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Tokens of a sequence, of either side, for --costs.")
    ] = 25,
    paper: Annotated[
        bool, typer.Option("--table-3", help="Parameter counts of the paper's table 3 beside ours.")
    ] = False,
) -> None:
    """Say how a model differs from the paper's, where its parameters are and what it costs."""
    from rich.console import Console
    from rich.table import Table

    from vanilla_transformer import VanillaTransformerConfig
    from vanilla_transformer.inspection.costs import print_costs, print_table_3

    if (model is None) != (show_list or paper) or (show_list and paper) or (costs and model is None):
        raise ValueError("name either a preset, a folder or a Hub id, or --list for all presets.")
    if paper:
        print_table_3(Console())
        return
    if model is None:
        table = Table("preset")
        table.add_column("parameters", justify="right")
        table.add_column("source")
        for name, source in VanillaTransformerConfig.presets().items():
            table.add_row(name, f"{VanillaTransformerConfig.from_preset(name).num_parameters():,}", source)
    else:
        config = _named_config(model)
        print(config.explain(), end="\n\n")
        if costs:
            print_costs(config, length, Console())
            return
        table = Table("part")
        for title in ("parameters", "share"):
            table.add_column(title, justify="right")
        total = config.num_parameters()
        for part, count in config.parameters_by_part().items():
            table.add_row(part, f"{count:,}", f"{count / total:.1%}")
        table.add_section()
        table.add_row("total", f"{total:,}", "")
    Console().print(table)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run.")] = Path("runs/demo"),
    overrides: Annotated[list[str] | None, typer.Argument(help="Recipe fields to override, name=value.")] = None,
) -> None:
    """Train a translator of written dates, amounts and durations in a few minutes, with data that needs no download."""
    from vanilla_transformer.recipes.known_fields import refuse_mistyped
    from vanilla_transformer.utils.schema import override_fields

    check_output_dir(output, empty=False)
    refuse_mistyped(override_fields({}, overrides or []))
    _quiet_libraries()
    from vanilla_transformer.demo import run_demo

    run_demo(output, overrides or [], log=_log)


def _check_names(recipe: Path, overrides: list[str]) -> None:
    """Refuse a file that is no recipe, and mistyped fields, before what trains is imported."""
    from vanilla_transformer.recipes.known_fields import refuse_mistyped
    from vanilla_transformer.utils.schema import override_fields, read_values

    refuse_mistyped(override_fields(read_values(recipe), overrides))


def _quiet_libraries() -> None:
    """Hide the progress of the libraries underneath, which is noise beside the command's own."""
    from vanilla_transformer.utils.quiet import hide_progress_bars

    hide_progress_bars()


def _named_config(model: str) -> "VanillaTransformerConfig":
    """Return the configuration of a preset, a folder or a Hub id.

    Raises:
        ValueError: for a mistaken name, with the nearest preset.
    """
    from vanilla_transformer import VanillaTransformerConfig
    from vanilla_transformer.loading import RemoteCodeError, load_config, locate
    from vanilla_transformer.utils.names import did_you_mean

    presets = VanillaTransformerConfig.presets()
    if model in presets:
        return VanillaTransformerConfig.from_preset(model)
    if not os.path.exists(os.path.expanduser(model)) and "/" not in model:
        near = did_you_mean(model, presets, otherwise="--list shows the presets.")
        raise ValueError(f"{model!r} is neither a preset nor a folder; {near}")
    try:
        config = load_config(locate(model))
    except RemoteCodeError as error:
        raise ValueError(f"{error.what}; explain reads models of this package, which need none.") from error
    if not isinstance(config, VanillaTransformerConfig):
        raise ValueError(
            f"{model} is a model of type {config.model_type}, not of this package; name one that is, or a preset of --list."
        )
    return config


def _open_input(name: str) -> IO[bytes]:
    """Open a text file, a pipe, or for `-` standard input; what gzip has packed is unpacked."""
    if name == "-":
        if sys.stdin is None:
            raise ClosedStreamError("standard input is closed; give a text file with --input.")
        return _unpacked(sys.stdin.buffer)
    try:
        return _unpacked(open(name, "rb"))  # noqa: SIM115 - whoever asked for it reads it
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no input file {name}; give a text file, or - for stdin.") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{name} is a folder; give a text file, or - for stdin.") from None


def _unpacked(stream: Any) -> IO[bytes]:
    # a terminal is not looked at before it is read
    if stream.isatty() or not hasattr(stream, "peek") or stream.peek(2)[:2] != b"\x1f\x8b":
        return stream
    unpacked = gzip.GzipFile(fileobj=stream)
    unpacked.myfileobj = stream  # closed with it
    return io.BufferedReader(unpacked)  # type: ignore[arg-type]


def _lines(stream: IO[bytes], name: str) -> Iterator[str]:
    number = 0
    try:
        while line := stream.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise ValueError(
                    f"{name}, line {number}: longer than {LONGEST_LINE:,} bytes; give a text file with one sentence a line."
                )
            try:
                # without the byte order mark of a first line
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{name}, line {number}: not valid UTF-8; convert the text to UTF-8 first."
                ) from error
            text = text.removesuffix("\n").removesuffix("\r")
            if number == 1 and "\r" in text and not line.endswith(b"\n"):
                raise ValueError(f"{name}: its lines end in carriage returns alone; convert them to line feeds first.")
            yield text
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{name}: damaged after line {number} ({error}); pack it with gzip again.") from error


@contextmanager
def _output(name: str) -> Iterator[IO[str]]:
    """Open a text file that is written atomically, or stdout for `-`."""
    if name != "-":
        with atomic_file(name) as stream:
            yield stream
        return
    if sys.stdout is None:
        raise ClosedStreamError("standard output is closed; give a file with --output.")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    yield sys.stdout


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")


def _output_line(number: int, hypothesis: "Hypothesis", n_best: int, scores: bool) -> str:
    text = _one_line(hypothesis.text)
    score = "" if hypothesis.score is None else f"{hypothesis.score:.4f}"
    if n_best > 1:
        return f"{number} ||| {text} ||| {score}\n"
    return f"{text}\t{score}\n" if scores else f"{text}\n"


def _refuse_empty(arguments: list[str]) -> None:
    """Refuse an empty argument, which is what an unset variable of a script leaves, before it is taken for this folder."""
    for position, argument in enumerate(arguments):
        before = arguments[position - 1] if position else "vanilla-transformer"
        if argument == "" or re.fullmatch(r"--[a-z][a-z-]*=", argument):
            place = argument.rstrip("=") if argument else before
            raise ValueError(
                f"the argument {'of' if argument else 'after'} {place} is empty; give a value, or leave it out."
            )
        if "\0" in argument:
            raise ValueError(f"{argument!r} contains a NUL character; give an argument without.")


def main(arguments: list[str] | None = None) -> None:
    """Run a command and end the process; how is told in [`vanilla_transformer.utils.errors`]."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    usage_error: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
    with friendly_errors(given):
        _refuse_empty(given)
        try:
            status = app(args=given, prog_name="vanilla-transformer", standalone_mode=False)
        except usage_error as error:
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "vanilla-transformer"
            raise ValueError(f"{error.format_message().rstrip('.')}; see {command} --help.") from error
        except DivergedError as error:
            _log_once(f"error: {describe(error)}")
            status = 1
        except RunInterrupted as error:
            _log_once(describe(error))
            status = 128 + error.number
        else:
            if status == 130:  # what typer makes of every interrupt, without a word
                raise interruption()
    sys.exit(status or 0)


def _log_once(line: str) -> None:
    """Print what all processes of a run have to say: on one of each machine."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        _log(line)


if __name__ == "__main__":
    main()
