"""What each of the processes does that `test_distributed.py` starts: `two_processes.py FOLDER`, under `fsdp_on_cpu.py`."""

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin, skip_first_batches
from torch.utils.data import DataLoader

from tiny import tiny_model, tokens
from vanilla_transformer.data import TokenBudgetBatchSampler, TokenBudgetStream
from vanilla_transformer.trainer.sharding import embeddings_in_root_group, gather_model, without_tied_copies
from vanilla_transformer.utils.shutdown import tear_down_at_exit

VARIANTS = ("paper", "untied", "separate", "gated-rmsnorm-pre")
LENGTHS = [(n % 9 + 1, n % 7 + 1) for n in range(101)]
ROWS = [{"number": n, "input_ids": [5] * source, "labels": [6] * target} for n, (source, target) in enumerate(LENGTHS)]


def numbers(batch):
    return [row["number"] for row in batch]


def batch_of(step, process):
    """Batches of several lengths, so that the processes have not the same number of labels."""
    labels = tokens(2, 3 + 2 * process, seed=9 + 10 * step + process)
    return {"input_ids": tokens(2, 7, seed=10 * step + process), "labels": labels}


def dealt(accelerator):
    """The batches that this process is given, of two epochs, and those after the first three of the second."""
    sampler = TokenBudgetBatchSampler(LENGTHS, 40, seed=3)
    loader = accelerator.prepare(DataLoader(ROWS, batch_sampler=sampler, collate_fn=numbers))
    found = {"sampler": [], "stream": []}
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        sampler.set_epoch(epoch)
        found["sampler"].append(list(loader))
    found["sampler resumed"] = list(skip_first_batches(loader, 3))

    def stream():
        return TokenBudgetStream(ROWS, 40, pool_size=50, seed=3)

    batches = stream()
    for epoch in (0, 1):
        batches.set_epoch(epoch)
        found["stream"].append(list(DataLoader(batches, batch_size=None, collate_fn=numbers, num_workers=epoch)))
    resumed = stream()
    resumed.load_state_dict({"epoch": 1, "batches": 3})
    found["stream resumed"] = list(DataLoader(resumed, batch_size=None, collate_fn=numbers))
    return found


def train_sharded(accelerator, variant, folder):
    """Three updates with FSDP2; the losses, and the model saved."""
    model = tiny_model(variant=variant).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with embeddings_in_root_group(model):
        model, optimizer = accelerator.prepare(model, optimizer)
    assert accelerator.is_fsdp2 and all(hasattr(p, "full_tensor") for p in model.parameters())
    losses = []
    for step in range(3):
        batch = batch_of(step, accelerator.process_index)
        items = accelerator.reduce(torch.tensor(batch["labels"].numel()))
        loss = model(**batch, num_items_in_batch=items, skip_logits=step % 2 == 0).loss
        accelerator.backward(loss * accelerator.num_processes)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach()).item())
    weights = without_tied_copies(model, accelerator.get_state_dict(model))
    if accelerator.is_main_process:
        model.save_pretrained(folder, state_dict=weights)
    whole = gather_model(accelerator, model)
    with torch.no_grad():
        logits = whole(**batch_of(0, 0)).logits
    return losses, logits


def main(folder):
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        state_dict_type="FULL_STATE_DICT",
        cpu_ram_efficient_loading=False,
    )
    tear_down_at_exit()
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    found = dealt(accelerator)
    for variant in VARIANTS:
        losses, logits = train_sharded(accelerator, variant, folder / variant)
        found[variant] = losses
        torch.save(logits, folder / f"{variant}-{accelerator.process_index}.pt")
    (folder / f"{accelerator.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
