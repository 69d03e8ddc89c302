"""Several processes give what one gives: batches, losses, weights, with DDP and with FSDP2; and the Accelerate training loop.

The processes are real ones, on gloo, on this machine's processors.
"""

import importlib.util
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save

import vanilla_transformer as vt
from runs import files_of_at_most, logged, recipe_values, run_on_two
from tiny import tiny_model
from two_processes import LENGTHS, ROWS, VARIANTS, batch_of, numbers
from vanilla_transformer.data import TokenBudgetBatchSampler, TokenBudgetStream
from vanilla_transformer.errors import RunInterrupted
from vanilla_transformer.recipes.recipe import Recipe, RecipeError
from vanilla_transformer.runs.run import run_recipe
from vanilla_transformer.utils import shutdown
from vanilla_transformer.utils.schema import override_fields
from warm_python import warm_python

TESTS = Path(__file__).parent
SCRIPTS = TESTS.parent / "scripts"
FSDP = ("--config_file", SCRIPTS / "launch" / "fsdp2.yaml")
TRAIN = ("-m", "vanilla_transformer", "train")
DDP = ("--multi_gpu", "--num_machines", 1, "--mixed_precision", "no", "--dynamo_backend", "no")


def launch(*arguments, python=None):
    """`accelerate launch` with two processes, which must end well; returns what they wrote on stderr."""
    python = python or warm_python()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "accelerate.commands.launch", "--num_processes", 2, "--main_process_port", port]
    done = subprocess.run(
        list(map(str, [*command, *arguments])),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHON_EXEC": python,
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def differences(first, second):
    """Largest difference of each weight of two safetensors files, but those of biases of keys.

    These shift all scores of a query alike, which a softmax does not see; so their gradients are rounding errors, and
    Adam makes whole updates of them.
    """
    first, second = load_file(first), load_file(second)
    assert first.keys() == second.keys()
    return {
        name: (first[name] - second[name]).abs().max().item() for name in first if not name.endswith("k_proj.bias")
    }


def values_of(folder, **training):
    """The recipe of a run of which two processes do in one batch each what one does in two."""
    values = recipe_values(folder)
    values["model"]["dropout"] = 0.0
    values["training"] |= {"max_steps": 6, "save_steps": 3, "eval_steps": 3, **training}
    return values


def written(values):
    path = Path(values["output_dir"]).parent / "recipe.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def losses_of(folder):
    return list(logged(folder, "loss").values())


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    values = values_of(tmp_path_factory.mktemp("one"))
    return run_recipe(Recipe.from_dict(values), log=lambda line: None).folder


# Batches and FSDP2 in a plain loop -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    launch(*FSDP, TESTS / "fsdp_on_cpu.py", TESTS / "two_processes.py", folder)
    return folder, [json.loads((folder / f"{index}.json").read_text()) for index in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sampler", "stream"])
def test_two_processes_share_the_batches_of_one(found, kind):
    if kind == "sampler":
        batches = TokenBudgetBatchSampler(LENGTHS, 40, seed=3)
    else:
        batches = TokenBudgetStream(ROWS, 40, pool_size=50, seed=3)
    first, second = found[1]
    for epoch in (0, 1):
        batches.set_epoch(epoch)
        whole = list(batches) if kind == "sampler" else [numbers(batch) for batch in batches]
        both = [batch for step in zip(first[kind][epoch], second[kind][epoch], strict=True) for batch in step]
        assert both[: len(whole)] == whole and len(both) - len(whole) < 2
    for process in (first, second):
        assert process[f"{kind} resumed"] == process[kind][1][3:]


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_sharded_training_equals_that_of_one_process_and_saves_the_tied_matrix_once(found, variant):
    """Reported in huggingface/accelerate#4171."""
    folder, processes = found
    model = tiny_model(variant=variant).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        batches = [batch_of(step, process) for process in (0, 1)]
        items = sum(batch["labels"].numel() for batch in batches)
        loss = sum(model(**batch, num_items_in_batch=items).loss for batch in batches)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for process in processes:
            assert process[variant][step] == pytest.approx(loss.item(), abs=1e-5)
    with torch.no_grad():
        logits = model.eval()(**batch_of(0, 0)).logits

    with safe_open(folder / variant / "model.safetensors", "pt") as file:
        saved = [name for name in file.keys() if "embed_tokens" in name or "lm_head" in name]  # noqa: SIM118
    assert len(saved) == {"paper": 1, "gated-rmsnorm-pre": 1, "separate": 2, "untied": 3}[variant]
    loaded = vt.VanillaTransformerForConditionalGeneration.from_pretrained(folder / variant)
    if variant == "paper":
        assert loaded.lm_head.weight is loaded.model.encoder.embed_tokens.weight
        assert loaded.lm_head.weight is loaded.model.decoder.embed_tokens.weight
    for name, weight in loaded.state_dict().items():
        assert torch.allclose(weight, model.state_dict()[name], atol=1e-6), name
    with torch.no_grad():
        gathered = [torch.load(folder / f"{variant}-{index}.pt") for index in (0, 1)]
        for other in (loaded(**batch_of(0, 0)).logits, *gathered):
            assert torch.allclose(other, logits, atol=1e-5)


# Whole runs ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_of_two_processes_is_that_of_one(tmp_path, one_process):
    values = values_of(tmp_path, gradient_accumulation_steps=1)
    said = launch(*DDP, *TRAIN, written(values), python=sys.executable)
    assert "warning" not in said.lower(), said
    run = Path(values["output_dir"])
    assert losses_of(run) == pytest.approx(losses_of(one_process), abs=1e-6)
    # 21 rows in batches of 8: the last ones of two processes are filled up with rows that the others have
    evaluated = [logged(folder, "eval_loss") for folder in (run, one_process)]
    assert evaluated[0] == pytest.approx(evaluated[1], abs=1e-6) and len(evaluated[0]) == 2
    assert logged(run, "train_loss") == pytest.approx(logged(one_process, "train_loss"), abs=1e-6)
    last = "checkpoint-6/model.safetensors"
    assert max(differences(run / last, one_process / last).values()) < 1e-6
    shares = [logged(folder, "padding_share") for folder in (run, one_process)]
    assert shares[0] == shares[1] and len(shares[0]) == 6, "padding of all processes, not of the first"


@pytest.mark.slow
def test_two_processes_are_stopped_by_a_signal_and_one_sentence_ends_both_where_one_refuses(tmp_path, one_process):
    values = values_of(tmp_path, gradient_accumulation_steps=1, disable_tqdm=True)
    recipe, run = written(values), Path(values["output_dir"])
    launcher = [warm_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(TESTS.parent)}
    environment["PYTHON_EXEC"] = warm_python()

    def start(*arguments):
        command = [*launcher, *TRAIN, recipe, *arguments]
        return subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True, env=environment)

    # far longer than it takes until the signal comes
    process = start("training.max_steps=100000", "training.eval_steps=50000", "training.save_steps=50000")
    said = iter(process.stderr)
    assert any("parameters, encoder-decoder" in line for line in said)
    assert any(line.startswith("update 9 of") for line in said)
    process.send_signal(signal.SIGTERM)
    lines = list(said)
    process.wait(60)
    kept = [line for line in lines if "interrupted at update" in line]
    assert len(kept) == 1 and "is kept; resume with the command that started it and --resume" in kept[0], lines
    (checkpoint,) = run.glob("checkpoint-*")
    assert checkpoint.name in kept[0]

    # one process more or less would be another run; a folder that is not empty is refused by the first process alone
    with pytest.raises(RecipeError, match="by 2 processes, but this is 1: .* would be trained with other batches"):
        run_recipe(Recipe.from_dict(override_fields(values, ["training.max_steps=100000"])), resume=True)
    process = start()
    lines = process.communicate()[1].splitlines()
    assert process.returncode == 1 and sum(line.startswith("error: ") for line in lines) == 1
    ours = [line for line in lines if "vanilla_transformer" in line and "File" in line]
    assert not ours, "no traceback of this package"


@pytest.mark.slow
def test_a_sharded_run_equals_that_of_one_process_also_resumed(tmp_path, one_process):
    """Reported in huggingface/accelerate#4171."""
    values = values_of(tmp_path, gradient_accumulation_steps=1)
    command = (
        *FSDP,
        TESTS / "fsdp_on_cpu.py",
        TESTS.parent / "vanilla_transformer" / "__main__.py",
        "train",
        written(values),
    )
    launch(*command)
    run = Path(values["output_dir"])
    last = "checkpoint-6/model.safetensors"

    def check():
        assert losses_of(run) == pytest.approx(losses_of(one_process), abs=1e-5)
        assert max(differences(run / last, one_process / last).values()) < 1e-5
        assert max(differences(run / "model.safetensors", one_process / "model.safetensors").values()) < 1e-5

    check()
    shutil.rmtree(run / "checkpoint-6")
    launch(*command, "--resume")
    check()


LAZY = """
import os, torch, torch.distributed as dist
from vanilla_transformer.utils.shutdown import tear_down_at_exit

tear_down_at_exit()
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))
model(torch.ones(2, 10)).sum().backward()
core = min(os.sched_getaffinity(0))
for thread in map(int, os.listdir("/proc/self/task")):
    os.sched_setaffinity(thread, {core})
    if thread != os.getpid():
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
dist.all_reduce(torch.ones(1000))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="sets how Linux schedules threads")
def test_a_process_ends_well_also_where_threads_of_sums_are_late(tmp_path):
    """These get a processor only where nobody else wants it; without `tear_down_at_exit` the process is then killed."""
    (tmp_path / "lazy.py").write_text(LAZY)
    run_on_two(tmp_path / "lazy.py", python=sys.executable)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how threads do")
def test_a_process_that_ends_waits_for_threads_that_compute():
    stop, matrix = threading.Event(), torch.ones(2000, 2000)

    def seconds_of_teardown():
        begun = time.monotonic()
        shutdown._tear_down(seconds=0.5)
        return time.monotonic() - begun

    def compute():
        while not stop.is_set():
            matrix @ matrix

    rested = seconds_of_teardown()
    thread = threading.Thread(target=compute)
    thread.start()
    waited = seconds_of_teardown()
    stop.set()
    thread.join()
    assert rested < 0.5 <= waited


def test_fsdp_on_processors_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(
        RecipeError, match="FSDP .* shards a model over accelerators, and there are none here; start with"
    ):
        run_recipe(Recipe.from_dict(values_of(tmp_path)), log=lambda line: None)
    assert not (tmp_path / "run").exists()


def test_fsdp_that_would_not_save_whole_weights_is_refused():
    from accelerate import FullyShardedDataParallelPlugin

    from vanilla_transformer.trainer.sharding import check_plugin

    good = {"fsdp_version": 2, "state_dict_type": "FULL_STATE_DICT"}
    check_plugin(FullyShardedDataParallelPlugin(**good))
    with pytest.raises(RecipeError, match=r"not 2 and SHARDED_STATE_DICT; scripts/launch/fsdp2.yaml"):
        check_plugin(FullyShardedDataParallelPlugin(**{**good, "state_dict_type": "SHARDED_STATE_DICT"}))
    with pytest.raises(RecipeError, match="not 1 and FULL_STATE_DICT"):
        check_plugin(FullyShardedDataParallelPlugin(**{**good, "fsdp_version": 1}))


# The Accelerate training loop ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loop():
    spec = importlib.util.spec_from_file_location("train_accelerate", SCRIPTS / "train_accelerate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda values, *overrides, resume=False: module.main(
        Recipe.from_dict(override_fields(values, overrides)), resume
    )


def logged_by_loop(folder, name="loss"):
    """The last value that was logged for each update."""
    entries = map(json.loads, (Path(folder) / "log.jsonl").read_text().splitlines())
    return {entry["step"]: entry[name] for entry in entries if name in entry}


@pytest.mark.parametrize("separate", [False, True], ids=["shared", "separate"])
def test_the_loop_gives_the_losses_of_the_trainer_update_for_update(tmp_path, loop, separate):
    values = recipe_values(tmp_path)
    values["tokenizer"]["shared"] = not separate
    values["training"] |= {"learning_rate": "noam", "eval_strategy": "epoch", "save_strategy": "epoch"}
    assert values["model"]["dropout"] > 0 and values["training"]["gradient_accumulation_steps"] > 1
    trained = run_recipe(Recipe.from_dict(values), log=lambda line: None).folder
    loop(values, f"output_dir={tmp_path / 'loop'}")
    for name in ("loss", "learning_rate"):
        assert logged_by_loop(tmp_path / "loop", name) == logged(trained, name)
    weights, others = (
        load_file(path) for path in (tmp_path / "loop/model.safetensors", trained / "checkpoint-9/model.safetensors")
    )
    assert weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)
    model = vt.VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "loop")
    assert (model.config.target_vocab_size is not None) == separate


@pytest.mark.parametrize(("stop", "strategy"), [(4, "steps"), (6, "steps"), (6, "epoch")])
def test_the_loop_goes_on_where_it_stopped(tmp_path, loop, stop, strategy):
    """In an epoch, at its end before the evaluation, and after that."""
    values = recipe_values(tmp_path)
    values["training"] |= {"save_strategy": strategy, "save_steps": 2}
    loop(values)
    loop(values, f"output_dir={tmp_path / 'stopped'}", f"training.max_steps={stop + 1}")
    (checkpoint,) = (tmp_path / "stopped").glob("checkpoint-*")
    assert checkpoint.name == f"checkpoint-{stop}"
    assert (checkpoint / "model.safetensors").is_file() and not list(checkpoint.glob("pytorch_model*"))
    loop(values, f"output_dir={tmp_path / 'stopped'}", resume=True)
    assert logged_by_loop(tmp_path / "stopped") == logged_by_loop(tmp_path / "run")
    assert logged_by_loop(tmp_path / "stopped", "eval_loss")[6] == logged_by_loop(tmp_path / "run", "eval_loss")[6]
    assert logged_by_loop(tmp_path / "stopped", "eval_loss")[9] == logged_by_loop(tmp_path / "run", "eval_loss")[9]


def test_the_loop_evaluates_to_the_mean_over_all_tokens(tmp_path, loop):
    values = recipe_values(tmp_path)
    overrides = "training.max_steps=1", "training.save_strategy=no", "training.per_device_eval_batch_size="
    for size in (1, 21):
        loop(values, f"output_dir={tmp_path / str(size)}", *overrides[:2], f"{overrides[2]}{size}")
    one, all_at_once = (logged_by_loop(tmp_path / str(size), "eval_loss")[1] for size in (1, 21))
    assert one == pytest.approx(all_at_once, abs=1e-6)


def test_the_loop_refuses_what_it_does_not_do(tmp_path, loop):
    values = recipe_values(tmp_path)
    with pytest.raises(RecipeError, match="inverse_sqrt"):
        loop(values, "training.lr_scheduler_type=cosine")
    with pytest.raises(RecipeError, match="is not empty; give --resume"):
        loop(values, f"output_dir={tmp_path}")
    loop(values, "training.max_steps=4")
    with pytest.raises(RecipeError, match="set back seed"):
        loop(values, "seed=2", resume=True)


class Evil:
    """What a file could do while it is unpickled."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


def test_the_loop_reads_no_pickle_and_names_what_is_damaged(tmp_path, loop):
    """A checkpoint of somebody else is data: nothing in it runs."""
    values = recipe_values(tmp_path)
    loop(values, "training.max_steps=4")
    checkpoint = tmp_path / "run" / "checkpoint-4"
    assert {path.suffix for path in checkpoint.iterdir()} == {".json", ".safetensors"}
    kept = {path: path.read_bytes() for path in checkpoint.iterdir()}
    state = json.loads(kept[checkpoint / "training_state.json"])
    for name in ("custom_checkpoint_0.pkl", "optimizer.bin", "random_states_0.pkl"):
        (checkpoint / name).write_bytes(pickle.dumps(Evil(tmp_path / "done")))
    (checkpoint / "training_state.json").unlink()
    with pytest.raises(ValueError, match=r"its state as pickles \(custom_checkpoint_0.pkl\), which can run any code"):
        loop(values, resume=True)

    def written(**changes):
        return json.dumps({**state, **changes}).encode()

    for name, content, sentence in (
        ("training_state.json", b"[]", "is damaged, as it holds a list"),
        ("training_state.json", b"[" * 10**5, "is damaged, as it is not valid JSON"),
        ("training_state.json", written(processes=2), "saved by 2 processes and not by 1"),
        ("training_state.json", written(progress={"epoch": "x"}), "epoch is 'x', not a number"),
        ("training_state.json", written(progress={"sorcery": 1}), "sorcery"),
        ("training_state.json", written(groups=[]), "is damaged, or of another model"),
        ("training_state.json", written(schedule={"last_epoch": 1}), "is damaged, or of another model"),
        ("optimizer.safetensors", kept[checkpoint / "optimizer.safetensors"][:-9], "is damaged, or of another model"),
        ("optimizer.safetensors", save({"0.exp_avg": torch.ones(3)}), r"0.exp_avg has the shape \(3,\)"),
        ("random_state_0.json", b'{"python": [3, [1], null]}', "random_state_0.json is damaged"),
        ("random_state_0.json", b"{}", "random_state_0.json is damaged"),
        ("model.safetensors", b"x", "model.safetensors is damaged"),
    ):
        for path, before in kept.items():
            path.write_bytes(content if path.name == name else before)
        with pytest.raises(ValueError, match=sentence):
            loop(values, resume=True)
    assert not (tmp_path / "done").exists()
    for path, before in kept.items():
        path.write_bytes(before)
    loop(values, resume=True)


@pytest.mark.parametrize("update", [2, 3], ids=["within an epoch", "its last update"])
def test_a_signal_ends_the_loop_with_a_checkpoint_from_which_it_is_the_unbroken_one(tmp_path, loop, update):
    values = recipe_values(tmp_path)
    values["training"] |= {"save_strategy": "epoch", "logging_steps": 2}
    loop(values)
    stopped = tmp_path / "stopped"
    original, calls = torch.nn.utils.clip_grad_norm_, []

    def signalled(*args, **kwargs):
        calls.append(1)
        if len(calls) == update:
            signal.raise_signal(signal.SIGTERM)
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", signalled)
        kept = f"interrupted by SIGTERM; checkpoint-{update} is kept; resume with: python scripts/train_accelerate.py {stopped}"
        with pytest.raises(RunInterrupted, match=kept):
            loop(values, f"output_dir={stopped}")
    loop(values, f"output_dir={stopped}", resume=True)
    assert logged_by_loop(stopped) == logged_by_loop(tmp_path / "run")
    assert logged_by_loop(stopped, "eval_loss") == logged_by_loop(tmp_path / "run", "eval_loss")
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (stopped, tmp_path / "run"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_checkpoint_that_the_loop_cannot_write_is_one_sentence(tmp_path, loop):
    sentence = f"{tmp_path / 'run/checkpoint-4'} could not be written: .*; make room and resume with --resume"
    with files_of_at_most(9_000), pytest.raises(OSError, match=sentence):
        loop(recipe_values(tmp_path))


@pytest.mark.slow
def test_the_loop_with_two_processes_is_that_with_one(tmp_path, loop, one_process):
    values = values_of(tmp_path, gradient_accumulation_steps=1)
    path = written(values)
    launch(*DDP, SCRIPTS / "train_accelerate.py", path, "training.max_steps=4")
    launch(*DDP, SCRIPTS / "train_accelerate.py", path, "--resume")
    assert list(logged_by_loop(values["output_dir"]).values()) == pytest.approx(losses_of(one_process), abs=1e-6)
    last = "checkpoint-6/model.safetensors"
    assert max(differences(Path(values["output_dir"]) / "model.safetensors", one_process / last).values()) < 1e-6
    loop(values_of(tmp_path), f"output_dir={tmp_path / 'alone'}")
    two, one = (logged_by_loop(folder, "eval_loss")[6] for folder in (values["output_dir"], tmp_path / "alone"))
    assert two == pytest.approx(one, abs=1e-6)
