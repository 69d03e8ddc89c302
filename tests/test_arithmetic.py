"""The numbers of `arithmetic` equal a model's own tensors and torch's count of its products."""

import re

import pytest
import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForMaskedLM,
)
from vanilla_transformer.arithmetic import (
    cache_bytes,
    complexity,
    decoding_multiply_adds,
    forward_multiply_adds,
    list_parts,
    paper_flops,
    table_3,
    training_flops,
)
from vanilla_transformer.inspection.costs import print_costs, print_table_3

HEADS = {
    "encoder-decoder": VanillaTransformerForConditionalGeneration,
    "encoder-only": VanillaTransformerForMaskedLM,
    "decoder-only": VanillaTransformerForCausalLM,
}
PRESETS = sorted(VanillaTransformerConfig.presets())
BATCH, TARGET, SOURCE = 2, 11, 17


def small(name: str, **changes) -> VanillaTransformerConfig:
    """Return a preset's choices at a size that a test can compute."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "intermediate_size": 96, "vocab_size": 300}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    layers = {"num_hidden_layers": 3, "decoder_layers": None, "num_key_value_heads": None, "embedding_size": None}
    if VanillaTransformerConfig.from_preset(name).architecture == "encoder-decoder":
        layers["decoder_layers"] = 2
    return VanillaTransformerConfig.from_preset(name, **(sizes | tokens | layers | changes))


def build(config: VanillaTransformerConfig):
    return HEADS[config.architecture]._from_config(config, attn_implementation="eager")


def batch_of(config: VanillaTransformerConfig) -> dict[str, torch.Tensor]:
    target = torch.randint(3, config.output_vocab_size, (BATCH, TARGET))
    if not config.is_encoder_decoder:
        return {"input_ids": target}
    return {"input_ids": torch.randint(3, config.vocab_size, (BATCH, SOURCE)), "decoder_input_ids": target}


def counted(run) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", PRESETS)
def test_the_parts_of_every_preset_add_up_to_its_tensors(name):
    config = VanillaTransformerConfig.from_preset(name)
    with torch.device("meta"):
        model = build(config)
    assert sum(part.total for part in list_parts(config)) == sum(
        p.numel() for p in model.parameters() if p.requires_grad
    )


@pytest.mark.parametrize("name", PRESETS)
def test_a_forward_pass_and_a_training_step_cost_what_torch_counts(name):
    config = small(name)
    model = build(config).eval()
    inputs = batch_of(config)
    forward = counted(lambda: model(**inputs, use_cache=False))
    assert 2 * sum(forward_multiply_adds(config, TARGET, SOURCE, BATCH).values()) == forward
    labels = inputs.pop("decoder_input_ids", inputs["input_ids"])
    # the loss in chunks adds into gradients by products that torch does not count
    step = counted(lambda: model.train()(**inputs, labels=labels, skip_logits=False).loss.backward())
    assert training_flops(config, TARGET, SOURCE, BATCH) == step == 3 * forward


@pytest.mark.parametrize("name", ["transformer-base", "gpt2", "llama-3-8b", "t5-small"])
def test_a_written_token_costs_what_torch_counts_and_caches_what_its_tensors_hold(name):
    config = small(name)
    model, inputs = build(config).eval(), batch_of(config)
    names = ("decoder_input_ids",) if config.is_encoder_decoder else ("input_ids",)
    with torch.no_grad():
        encoded = None
        if config.is_encoder_decoder:
            encoded = model.get_encoder()(inputs["input_ids"])
        given = {"encoder_outputs": encoded} if encoded is not None else {}
        cache = model(**given, **{names[0]: inputs[names[0]]}, use_cache=True).cache
        step = counted(lambda: model(**given, **{names[0]: inputs[names[0]][:, -1:]}, cache=cache, use_cache=True))
    assert step == 2 * BATCH * sum(decoding_multiply_adds(config, TARGET + 1, SOURCE).values())
    layers = getattr(cache, "self_attention_cache", cache).layers
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
    assert held == cache_bytes(config)["target"] * BATCH * (TARGET + 1)
    if config.is_encoder_decoder:
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.cross_attention_cache.layers)
        assert held == cache_bytes(config)["source"] * BATCH * SOURCE
    assert cache_bytes(config, "bfloat16")["target"] * 2 == cache_bytes(config)["target"]


def test_a_layer_of_the_paper_is_twelve_times_the_square_of_its_width_and_what_stands_beside():
    config = VanillaTransformerConfig(architecture="decoder-only")
    layer = sum(part.parameters for part in list_parts(config) if part.copies == 6)
    biases_and_norms = 4 * 512 + 2048 + 512 + 2 * 2 * 512
    assert layer == 12 * 512**2 + biases_and_norms


def test_what_shares_weights_is_counted_once_and_run_as_often_as_the_stack_is_deep():
    once, each = (small("transformer-base", shared_layers=shared) for shared in (True, False))
    assert sum(p.total for p in list_parts(once)) < sum(p.total for p in list_parts(each))
    assert training_flops(once, TARGET, SOURCE) == training_flops(each, TARGET, SOURCE)


def test_an_encoder_writes_no_tokens():
    config = small("bert-base")
    assert cache_bytes(config) == {}
    with pytest.raises(ValueError, match="encoder-only model writes no tokens"):
        decoding_multiply_adds(config, 5)


def test_table_1_has_the_numbers_of_the_model():
    rows = {row[0]: row for row in complexity(VanillaTransformerConfig(sliding_window=16), length=64)}
    assert rows["self-attention"][2] == 64 * 64 * 512 and rows["recurrent"][2] == 64 * 512 * 512
    assert rows["convolutional"][6] == 4  # 3^3 < 64 <= 3^4
    assert rows["self-attention (restricted)"][2:] == (16 * 64 * 512, "1", 1, "n/r", 4)


def test_table_2_is_time_times_devices_times_speed():
    # Section 6.1: base 12 hours and big 3.5 days on 8 P100, at 9.5 TFLOP/s each
    assert paper_flops(12 * 3600, 8, 9.5e12) == pytest.approx(3.3e18, rel=0.01)
    assert paper_flops(3.5 * 86400, 8, 9.5e12) == pytest.approx(2.3e19, rel=0.01)


def test_table_3_agrees_with_the_paper_at_a_vocabulary_size_for_each_row():
    rows = table_3()
    assert len(rows) == 20 and rows[0][:3] == ("base", 63_082_496, 65)
    for name, count, millions, agree in rows:
        if millions is None:
            assert agree is None
            continue
        low, high = agree
        for size in (low, high):
            changed = count + (size - 37000) * (
                1024 if name in ("big", "(C) d_model=1024") else 256 if "256" in name else 512
            )
            assert round(changed / 1e6) == millions, name


def test_explain_prints_costs_and_the_papers_tables(capsys):
    console = Console(width=200)
    print_costs(VanillaTransformerConfig(), 10, console)
    print_table_3(console)
    said = capsys.readouterr().out
    base = VanillaTransformerConfig()
    assert f"{sum(forward_multiply_adds(base, 10).values()):,}" in said
    assert f"{training_flops(base, 10):,} floating-point operations" in said
    assert "12·D² = 3,145,728" in said and "n²·d = 51,200" in said
    assert re.search(r"base +│ +63,082,496 │ +65 │ +39,\d{3} to 41,\d{3}", said)
    assert re.search(r"\(B\) d_k=16 +│ +55,\d{3},\d{3} │ +58", said)
