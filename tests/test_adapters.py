"""LoRA on every architecture, by PEFT."""

import importlib
import warnings

import pytest
import torch
from packaging import version
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Trainer,
    TrainingArguments,
    pipeline,
)

import vanilla_transformer as vt
from closeness import assert_close
from runs import word_tokenizer
from tiny import ARCHITECTURES, GRID, LANGUAGE_MODELS, model_inputs, tiny_model, tokens
from vanilla_transformer.adapters import ADAPTED_LAYERS, register

peft = pytest.importorskip("peft")
LoraConfig, PeftModel, get_peft_model = peft.LoraConfig, peft.PeftModel, peft.get_peft_model


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # PEFT asks transformers for a property that has another name now
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
        # and takes an output embedding that is not the input embedding for one that is not tied; see save_pretrained
        warnings.filterwarnings("ignore", "Input and output embeddings are no longer tied after merging")
        # and calls the cache by its old name
        warnings.filterwarnings("ignore", "`past_key_values` is deprecated")
        yield


def adapt(model, **options):
    """Adapters that change what the model says: fresh ones add nothing."""
    model = get_peft_model(model, LoraConfig(r=4, **{"init_lora_weights": False, **options}))
    return model.eval()


def test_registering_keeps_what_is_there():
    constants = importlib.import_module("peft.utils.constants")
    table = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    assert table["vanilla_transformer"] == list(ADAPTED_LAYERS) and table["bart"] == ["q_proj", "v_proj"]
    table["vanilla_transformer"] = ["k_proj"]
    register(vars(constants))
    assert table["vanilla_transformer"] == ["k_proj"]
    table["vanilla_transformer"] = list(ADAPTED_LAYERS)
    assert "vanilla_transformer" in constants.TRANSFORMERS_MODELS_TO_LOHA_TARGET_MODULES_MAPPING


@pytest.mark.parametrize(
    ("architecture", "task"), [("decoder-only", "CAUSAL_LM"), ("encoder-decoder", "SEQ_2_SEQ_LM")]
)
@pytest.mark.parametrize("heads", [None, 2])
def test_prefix_tuning_trains(architecture, task, heads):
    """PEFT reads the number and width of heads in the configuration's dictionary."""
    config = peft.PrefixTuningConfig(task_type=task, num_virtual_tokens=3)
    # PEFT makes as many layers of prefixes as the encoder has
    model = get_peft_model(tiny_model(architecture, decoder_layers=None, num_key_value_heads=heads), config).train()
    ids, mask = tokens(2, 6), torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    given = {"input_ids": ids, "attention_mask": mask, "labels": ids}
    model(**given).loss.backward()
    assert all(p.grad.any() for p in model.parameters() if p.requires_grad)
    assert_close(model.eval()(**given).loss, model.train()(**given, skip_logits=False).loss, atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("config", "layers"),
    [
        (lambda: peft.IA3Config(), {"q_proj", "v_proj", "down_proj"}),
        (lambda: peft.AdaLoraConfig(total_step=9), {f"{n}_proj" for n in ("q", "k", "v", "o", "up", "down")}),
    ],
)
def test_other_methods_have_default_targets(architecture, config, layers):
    config = config()
    model = get_peft_model(tiny_model(architecture), config).train()
    assert config.target_modules == layers
    ids = tokens(2, 5)
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("architecture", "variant", "targets"),
    [(*case, "all-linear") for case in GRID] + [(architecture, "paper", None) for architecture in ARCHITECTURES],
)
def test_merged_saved_and_loaded(architecture, variant, targets, tmp_path):
    model = tiny_model(architecture, variant)
    model.save_pretrained(tmp_path / "base")
    inputs = model_inputs(model)
    plain, is_tied = model(**inputs).logits, model.config.tie_word_embeddings
    adapted = adapt(model, target_modules=targets)
    adapters = [name for name, _ in adapted.named_modules() if name.endswith("lora_A")]
    attentions = model.config.num_hidden_layers
    if architecture == "encoder-decoder":
        attentions += 2 * model.config.decoder_layers
    assert len(adapters) == 2 * attentions if targets is None else len(adapters) > 2 * attentions
    assert not [name for name in adapters if "lm_head" in name or "embed_tokens" in name]
    logits = adapted(**inputs).logits
    assert (logits - plain).abs().max() > 1e-3
    adapted.save_pretrained(tmp_path / "adapter")
    loaded = LANGUAGE_MODELS[architecture].from_pretrained(tmp_path / "base")
    assert_close(PeftModel.from_pretrained(loaded, tmp_path / "adapter").eval()(**inputs).logits, logits)

    merged = adapted.merge_and_unload()
    assert_close(merged(**inputs).logits, logits)
    merged.save_pretrained(tmp_path / "merged")
    again, found = LANGUAGE_MODELS[architecture].from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not any(found[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(again) is LANGUAGE_MODELS[architecture] and again.config.tie_word_embeddings == is_tied
    assert_close(again(**inputs).logits, logits)
    weights = [p.data_ptr() for p in again.parameters()]
    assert len(weights) == len(list(model.parameters())) == len(set(weights))


@pytest.mark.parametrize(
    ("architecture", "head", "task"),
    [
        ("encoder-only", vt.VanillaTransformerForSequenceClassification, "SEQ_CLS"),
        ("encoder-only", vt.VanillaTransformerForTokenClassification, "TOKEN_CLS"),
        ("encoder-only", vt.VanillaTransformerForQuestionAnswering, "QUESTION_ANS"),
        ("encoder-decoder", vt.VanillaTransformerForConditionalGeneration, "SEQ_2_SEQ_LM"),
        ("decoder-only", vt.VanillaTransformerForCausalLM, "CAUSAL_LM"),
    ],
)
def test_tasks_of_peft(architecture, head, task, tmp_path):
    """A new head is trained and saved with the adapter; what generates still does."""
    model = tiny_model(architecture, model_class=head)
    model.save_pretrained(tmp_path / "base")
    adapted = adapt(model, task_type=task)
    names = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    heads = {name for name in names if "lora" not in name}
    assert bool(heads) == (task in ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS"))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if name in heads:
                parameter.add_(1.0)
    ids = tokens(2, 5)
    adapted.save_pretrained(tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(head.from_pretrained(tmp_path / "base"), tmp_path / "adapter").eval()
    if task in ("SEQ_2_SEQ_LM", "CAUSAL_LM"):
        options = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 4, "num_beams": 2}
        written = adapted.generate(**options)
        assert torch.equal(loaded.generate(**options), written)
        assert torch.equal(adapted.merge_and_unload().generate(**options), written)
        return
    outputs = [each(ids) for each in (adapted, loaded, adapted.merge_and_unload())]
    for other in outputs[1:]:
        for one, same in zip(outputs[0].to_tuple(), other.to_tuple(), strict=True):
            assert_close(same, one)


class Blocks(Dataset):
    """Texts that count upwards."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        ids = (torch.arange(8) + index) % 40 + 4
        return {"input_ids": ids, "labels": ids}


def test_twenty_steps_of_a_causal_lm(tmp_path):
    """PEFT's own example: train with a Trainer, merge, save, load."""
    model = tiny_model("decoder-only", scale=0.05)
    model.save_pretrained(tmp_path / "base")
    adapted = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, task_type="CAUSAL_LM"))
    frozen = {n: p.detach().clone() for n, p in adapted.named_parameters() if not p.requires_grad}
    arguments = TrainingArguments(
        str(tmp_path / "run"), max_steps=20, learning_rate=0.05, per_device_train_batch_size=8, logging_steps=1,
        report_to="none", use_cpu=True, disable_tqdm=True, save_steps=20, seed=1,
    )  # fmt: skip
    trainer = Trainer(adapted, arguments, train_dataset=Blocks())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 20 and sum(losses[-3:]) < 0.9 * sum(losses[:3])
    assert all(torch.equal(p, frozen[n]) for n, p in adapted.named_parameters() if n in frozen)
    adapted.eval()
    ids = Blocks()[3]["input_ids"][None]
    logits = adapted(ids).logits
    checkpoint = tmp_path / "run" / "checkpoint-20"
    assert (checkpoint / "adapter_model.safetensors").is_file() and not (checkpoint / "model.safetensors").exists()
    from_checkpoint = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), checkpoint)
    assert_close(from_checkpoint.eval()(ids).logits, logits)
    merged = adapted.merge_and_unload()
    assert_close(merged(ids).logits, logits)
    merged.save_pretrained(tmp_path / "merged")
    assert_close(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(ids).logits, logits)


needs_newer_peft = pytest.mark.skipif(
    version.parse(peft.__version__) < version.parse("0.22"), reason="transformers' own adapters need PEFT 0.22"
)


@needs_newer_peft
def test_adapters_of_transformers(tmp_path):
    """Its `add_adapter` and `load_adapter`, and a pipeline of a folder that holds an adapter alone."""
    tokenizer = word_tokenizer()
    head = vt.VanillaTransformerForSequenceClassification
    model = tiny_model("encoder-only", model_class=head, vocab_size=len(tokenizer))
    model.save_pretrained(tmp_path / "base")
    model.add_adapter(LoraConfig(r=4, init_lora_weights=False))
    model.eval()
    ids = tokens(2, 5)
    logits = model(ids).logits
    model.save_pretrained(tmp_path / "adapter")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    assert (again(ids).logits - logits).abs().max() > 1e-3
    again.load_adapter(str(tmp_path / "adapter"))
    assert_close(again.eval()(ids).logits, logits)

    adapted = adapt(head.from_pretrained(tmp_path / "base"))
    adapted.save_pretrained(tmp_path / "peft")
    use = pipeline("text-classification", model=str(tmp_path / "peft"), tokenizer=tokenizer, device="cpu")
    expected = adapted(**tokenizer("red dog", return_tensors="pt")).logits.softmax(-1).max().item()
    assert use("red dog")[0]["score"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("architecture", ["decoder-only", "encoder-decoder"])
@pytest.mark.parametrize("options", [{"modules_to_save": ["embed_tokens"]}, {"trainable_token_indices": [5, 9]}])
def test_embeddings_can_be_trained(architecture, options, tmp_path):
    """All of them, which unties them, or those of some tokens, which does not."""
    model = tiny_model(architecture)
    model.save_pretrained(tmp_path / "base")
    inputs = model_inputs(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`")
        adapted = adapt(model, **options)
    randomise_trainable(adapted)
    logits = adapted(**inputs).logits
    merged = adapted.merge_and_unload()
    assert_close(merged(**inputs).logits, logits)
    merged.save_pretrained(tmp_path / "merged")
    again, found = type(merged).from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"]
    assert again.config.tie_word_embeddings == ("trainable_token_indices" in options)
    assert_close(again(**inputs).logits, logits)


def randomise_trainable(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
