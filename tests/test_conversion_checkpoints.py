"""Checkpoints of fairseq and OpenNMT-py, compared with modules written from their published definitions."""

import pickle

import pytest
import torch
from transformers import AutoTokenizer

import reference_fairseq
import reference_opennmt
import vanilla_transformer as vt
from closeness import assert_close
from tiny import randomise
from vanilla_transformer.conversion import ConversionError, from_fairseq, from_opennmt, to_transformers
from vanilla_transformer.conversion.folders import convert_folder
from vanilla_transformer.utils.log import no_log

PAD = reference_fairseq.PAD
assert PAD == reference_opennmt.PAD

FAIRSEQ = {
    "post-norm": {},
    "pre-norm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "learned": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "share-decoder-input-output-embed": {"share_decoder_input_output_embed": True},
    "share-all-embeddings": {"share_all_embeddings": True},
    "no-positions-unscaled": {"no_token_positional_embeddings": True, "no_scale_embedding": True},
    "layernorm-embedding-gelu": {"layernorm_embedding": True, "activation_fn": "gelu"},
}
OPENNMT = {
    "biases": {},
    "no-biases": {"add_qkvbias": False, "add_ffnbias": False},
    "shared": {"share_embeddings": True, "share_decoder_embeddings": True},
    "share-decoder-embeddings": {"share_decoder_embeddings": True},
    "no-positions": {"position_encoding": False},
    "concatenated": {"position_encoding_type": "SinusoidalConcat"},
    "gated-rms-multi-query": {"pos_ffn_activation_fn": "silu", "layer_norm": "rms", "norm_eps": 1e-5, "num_kv": 1},
    "gated-gelu": {"pos_ffn_activation_fn": "gated-gelu"},
    "gelu": {"pos_ffn_activation_fn": "gelu"},
}


def silent(line):
    raise AssertionError(line)


def fairseq_model(**changes):
    args = reference_fairseq.settings(**changes)
    torch.manual_seed(0)
    model = reference_fairseq.TransformerModel(args, 50, 50 if args.share_all_embeddings else 44)
    return args, randomise(model).eval()


def fairseq_checkpoint(path, args, weights):
    torch.save({"args": args, "model": weights, "extra_state": {"epoch": 3}, "last_optimizer_state": None}, path)
    return path


def opennmt_model(**changes):
    opt = reference_opennmt.settings(**changes)
    torch.manual_seed(0)
    sizes = (46, 46 if opt.share_embeddings else 41)
    model = randomise(reference_opennmt.NMTModel(opt, *sizes)).eval()
    words = [[f"word{n}" for n in range(size - 4)] for size in sizes]
    return opt, model, words


def rows(side, generator, lengths=(7, 4, 6), size=40):
    """Random tokens behind the special ones, padded on one side."""
    ids = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in enumerate(lengths):
        place = slice(ids.shape[1] - length, None) if side == "left" else slice(0, length)
        ids[row, place] = torch.randint(4, size, (length,), generator=generator)
    return ids


@torch.no_grad()
def assert_same_logits(reference, ours, sides):
    generator = torch.Generator().manual_seed(1)
    for side in sides:
        source, target = rows(side, generator), rows("right", generator, (5, 6, 3))
        expected = reference(source, target)
        logits = ours(source, source.ne(PAD), decoder_input_ids=target, decoder_attention_mask=target.ne(PAD)).logits
        difference = (logits - expected)[target.ne(PAD)].abs().max().item()
        assert difference <= 1e-4, (side, difference)


@torch.no_grad()
def greedy(reference, source, start, eos, steps):
    """Token by token, without a cache."""
    written = torch.full((len(source), 1), start)
    for _ in range(steps):
        logits = reference(source, written)[:, -1]
        logits[:, PAD] = -torch.inf
        tokens = logits.argmax(-1, keepdim=True)
        ended = (written[:, 1:] == eos).any(-1, keepdim=True)
        written = torch.cat([written, tokens.masked_fill(ended, PAD)], dim=1)
    return written


def assert_same_tokens(reference, ours, sides, start, eos):
    for side in sides:
        source = rows(side, torch.Generator().manual_seed(2))
        written = ours.generate(source, attention_mask=source.ne(PAD), max_new_tokens=8, do_sample=False)
        expected = greedy(reference, source, start, eos, written.shape[1] - 1)
        assert torch.equal(written, expected)


@pytest.mark.parametrize("version", ["new", "in_proj", "layer_norms"])
@pytest.mark.parametrize("name", FAIRSEQ)
def test_fairseq_gives_the_same(name, version, tmp_path):
    """Padded on either side: fairseq pads sources on the left, and counts positions without padding."""
    args, reference = fairseq_model(**FAIRSEQ[name])
    weights = reference.state_dict()
    if version != "new":
        weights = reference_fairseq.old_names(weights, version)
    ours = from_fairseq(fairseq_checkpoint(tmp_path / "checkpoint.pt", args, weights), log=silent)
    assert ours.config.tie_word_embeddings == (args.share_decoder_input_output_embed or args.share_all_embeddings)
    assert ours.config.has_shared_embeddings == args.share_all_embeddings
    assert_same_logits(reference, ours, ("right", "left"))
    assert_same_tokens(reference, ours, ("right", "left"), start=2, eos=2)


@pytest.mark.parametrize("name", OPENNMT)
def test_opennmt_gives_the_same(name, tmp_path):
    """Padded on the right, where OpenNMT-py pads."""
    opt, reference, words = opennmt_model(**OPENNMT[name])
    torch.save(reference.checkpoint(opt, words), tmp_path / "model.pt")
    ours = from_opennmt(tmp_path / "model.pt")
    assert ours.config.tie_word_embeddings == opt.share_decoder_embeddings
    assert ours.config.has_shared_embeddings == opt.share_embeddings
    assert (ours.config.pad_token_id, ours.config.bos_token_id, ours.config.eos_token_id) == (1, 2, 3)
    assert_same_logits(reference, ours, ["right"])
    assert_same_tokens(reference, ours, ["right"], start=2, eos=3)


@pytest.mark.slow
def test_the_same_at_real_depth(tmp_path):
    args, reference = fairseq_model(encoder_layers=6, decoder_layers=6)
    path = fairseq_checkpoint(tmp_path / "checkpoint.pt", args, reference.state_dict())
    assert_same_logits(reference, from_fairseq(path, log=silent), ("right", "left"))
    opt, reference, words = opennmt_model(enc_layers=6, dec_layers=6)
    torch.save(reference.checkpoint(opt, words), tmp_path / "model.pt")
    assert_same_logits(reference, from_opennmt(tmp_path / "model.pt"), ["right"])


def test_every_weight_of_a_checkpoint_counts(tmp_path):
    """One weight after another is changed a little, and the outputs are no longer those of the reference."""
    args, reference = fairseq_model(encoder_layers=1, decoder_layers=1)
    weights = reference.state_dict()
    for name in weights:
        # positions and versions are no weights, and softmax takes no notice of the bias of keys
        if name.endswith(("_float_tensor", "version", "k_proj.bias")):
            continue
        changed = weights | {name: weights[name] + 0.1 * torch.randn(weights[name].shape)}
        ours = from_fairseq(fairseq_checkpoint(tmp_path / "checkpoint.pt", args, changed))
        with pytest.raises(AssertionError, match=r"\d"):
            assert_same_logits(reference, ours, ("right", "left"))


def test_earlier_and_later_forms_of_settings(tmp_path):
    args, reference = fairseq_model()
    for settings in (
        {"args": args},
        {"args": None, "cfg": {"model": args}},
        {"args": None, "cfg": {"model": vars(args)}},
    ):
        torch.save({**settings, "model": reference.state_dict()}, tmp_path / "checkpoint.pt")
        assert_same_logits(reference, from_fairseq(tmp_path / "checkpoint.pt"), ["left"])
    # the format before torch 1.6
    torch.save(
        {"args": args, "model": reference.state_dict()}, tmp_path / "c.pt", _use_new_zipfile_serialization=False
    )
    assert_same_logits(reference, from_fairseq(tmp_path / "c.pt"), ["left"])
    # norms of OpenNMT-py before 0.3
    opt, reference, words = opennmt_model()
    checkpoint = reference.checkpoint(opt, words)
    norms = {name: name for name in checkpoint["model"] if "layer_norm" in name}
    for name in norms:
        new = name.removesuffix("weight") + "a_2" if name.endswith("weight") else name.removesuffix("bias") + "b_2"
        checkpoint["model"][new] = checkpoint["model"].pop(name)
    checkpoint["generator"] = {f"0.{name}": tensor for name, tensor in checkpoint["generator"].items()}
    checkpoint["model"]["decoder.transformer_layers.0.mask"] = torch.ones(1, 5, 5)
    torch.save(checkpoint, tmp_path / "model.pt")
    assert_same_logits(reference, from_opennmt(tmp_path / "model.pt"), ["right"])


class Evil:
    """What a file could do while it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("read", [from_fairseq, from_opennmt])
@pytest.mark.parametrize("new", [True, False])
def test_nothing_in_a_checkpoint_is_run(read, new, tmp_path):
    args, reference = fairseq_model()
    checkpoint = {"args": args, "model": reference.state_dict(), "task": Evil(tmp_path / "done")}
    torch.save(checkpoint, tmp_path / "checkpoint.pt", _use_new_zipfile_serialization=new)
    with pytest.raises(ConversionError, match=r"holds objects of (_io|io)\.open beside weights") as error:
        read(tmp_path / "checkpoint.pt")
    assert not (tmp_path / "done").exists() and "\n" not in str(error.value)
    # it is the file that would have done it
    with (tmp_path / "evil.pkl").open("wb") as stream:
        pickle.dump(Evil(tmp_path / "done"), stream)
    with (tmp_path / "evil.pkl").open("rb") as stream:
        pickle.load(stream)
    assert (tmp_path / "done").exists()


def test_files_that_are_none(tmp_path):
    with pytest.raises(ConversionError, match="there is no checkpoint"):
        from_fairseq(tmp_path / "none.pt")
    for content in (b"", b"text", b"PK\x03\x04 cut off"):
        (tmp_path / "broken.pt").write_bytes(content)
        with pytest.raises(ConversionError, match="is not a checkpoint of torch.save"):
            from_fairseq(tmp_path / "broken.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ConversionError, match="no weights under 'model'"):
        from_fairseq(tmp_path / "list.pt")
    args, reference = fairseq_model()
    weights = reference.state_dict()
    for name, value in (("encoder.more", 3), (7, torch.zeros(2))):
        fairseq_checkpoint(tmp_path / "no-weight.pt", args, {**weights, name: value})
        with pytest.raises(ConversionError, match=f"{name!r}, under 'model', is not a weight with a name"):
            from_fairseq(tmp_path / "no-weight.pt")
    fairseq_checkpoint(tmp_path / "bare.pt", args, {n: w for n, w in weights.items() if "encoder.layers" not in n})
    with pytest.raises(ConversionError, match="there is no layer 0 of the encoder"):
        from_fairseq(tmp_path / "bare.pt")
    torch.save({"model": reference.state_dict()}, tmp_path / "bare.pt")
    with pytest.raises(ConversionError, match="holds no settings"):
        from_fairseq(tmp_path / "bare.pt")
    with pytest.raises(ConversionError, match="no 'opt' and 'generator'"):
        from_opennmt(tmp_path / "bare.pt")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"decoder_attention_heads": 2}, "encoder_attention_heads=4 and decoder_attention_heads=2"),
        ({"decoder_normalize_before": True}, "one stack has a norm at the end and one has not"),
        ({"activation_fn": "relu_squared"}, "activation_fn='relu_squared' cannot be converted"),
        ({"adaptive_softmax_cutoff": "10,20"}, "adaptive_softmax_cutoff"),
        ({"encoder_attention_heads": None, "decoder_attention_heads": None}, "how many encoder_attention_heads"),
    ],
)
def test_settings_of_fairseq_without_a_place(changes, said, tmp_path):
    built = {name: value for name, value in changes.items() if "normalize" in name}
    args, reference = fairseq_model(**built)
    for name, value in changes.items():
        setattr(args, name, value)
    with pytest.raises(ConversionError, match=said):
        from_fairseq(fairseq_checkpoint(tmp_path / "checkpoint.pt", args, reference.state_dict()))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_relative_positions": 20}, "max_relative_positions=20 cannot be converted; 0 can"),
        ({"copy_attn": True}, "copy_attn=True"),
        ({"encoder_type": "brnn"}, "encoder_type='brnn'"),
        ({"self_attn_type": "average"}, "self_attn_type='average'"),
        ({"heads": None}, "how many heads"),
        ({"position_encoding_type": "Learned"}, "position_encoding_type='Learned' cannot be converted"),
        # of the other form than its table
        ({"position_encoding_type": "SinusoidalConcat"}, "pe.pe differs from the sinusoids of 'fairseq' by"),
    ],
)
def test_settings_of_opennmt_without_a_place(changes, said, tmp_path):
    opt, reference, words = opennmt_model()
    for name, value in changes.items():
        setattr(opt, name, value)
    torch.save(reference.checkpoint(opt, words), tmp_path / "model.pt")
    with pytest.raises(ConversionError, match=said):
        from_opennmt(tmp_path / "model.pt")


def test_weights_without_a_place_and_places_without_a_weight(tmp_path):
    args, reference = fairseq_model()
    weights = reference.state_dict()
    more = {**weights, "decoder.project_in_dim.weight": torch.ones(2, 2)}
    with pytest.raises(ConversionError, match="no place for decoder.project_in_dim.weight"):
        from_fairseq(fairseq_checkpoint(tmp_path / "checkpoint.pt", args, more))
    less = {name: tensor for name, tensor in weights.items() if name != "decoder.layers.1.fc2.bias"}
    with pytest.raises(ConversionError, match="no weight for model.decoder.layers.1.feed_forward.down_proj.bias"):
        from_fairseq(fairseq_checkpoint(tmp_path / "checkpoint.pt", args, less))
    only = {name: tensor for name, tensor in weights.items() if name.startswith("decoder.")}
    with pytest.raises(ConversionError, match="only models with an encoder and a decoder"):
        from_fairseq(fairseq_checkpoint(tmp_path / "checkpoint.pt", args, only))
    opt, reference, words = opennmt_model()
    checkpoint = reference.checkpoint(opt, words)
    checkpoint["model"]["decoder.copy_attn.linear.weight"] = torch.ones(2, 2)
    torch.save(checkpoint, tmp_path / "model.pt")
    with pytest.raises(ConversionError, match="no place for decoder.copy_attn.linear.weight"):
        from_opennmt(tmp_path / "model.pt")


def test_post_norm_fairseq_goes_on_to_fsmt(tmp_path):
    args, reference = fairseq_model()
    ours = from_fairseq(fairseq_checkpoint(tmp_path / "checkpoint.pt", args, reference.state_dict()))
    theirs = to_transformers(ours)
    assert type(theirs).__name__ == "FSMTForConditionalGeneration"
    source, target = rows("left", torch.Generator().manual_seed(3)), torch.tensor([[2, 5, 6]] * 3)
    with torch.no_grad():
        logits = theirs(source, source.ne(PAD), decoder_input_ids=target, use_cache=False).logits
        assert_close(logits, reference(source, target), atol=1e-4)


# ------------------------------------------------------------------------------------------------------------- command


def write_dictionary(path, count):
    words = [f"wort{n}" for n in range(count)]
    path.write_text("".join(f"{word} {100 - n}\n" for n, word in enumerate(words)), encoding="utf-8")
    return path


def test_the_command_reads_fairseq_with_its_dictionaries(tmp_path):
    args, reference = fairseq_model()
    path = fairseq_checkpoint(tmp_path / "checkpoint_best.pt", args, reference.state_dict())
    source, target = (write_dictionary(tmp_path / f"dict.{side}.txt", n) for side, n in (("src", 46), ("trg", 40)))
    lines = []
    convert_folder(
        path, tmp_path / "ours", kind="fairseq", source_dictionary=source, target_dictionary=target, log=lines.append
    )
    assert any("all weights are placed" in line for line in lines)
    ours = vt.VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "ours")
    assert_same_logits(reference, ours, ["left"])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer("wort3 wort45 anders").input_ids == [7, 49, 3, 2]
    written = AutoTokenizer.from_pretrained(tmp_path / "ours" / "target_tokenizer")
    assert written.decode([2, 4, 43, 2], skip_special_tokens=True) == "wort0 wort39"

    with pytest.raises(ConversionError, match="dict.trg.txt has 44 entries .* the encoder .* 50"):
        convert_folder(path, tmp_path / "other", kind="fairseq", source_dictionary=target)
    (tmp_path / "dict.src.txt").write_text("wort0 10\nno count\n")
    with pytest.raises(ConversionError, match="dict.src.txt, line 2: 'no count' is not a token and its count"):
        convert_folder(path, tmp_path / "other", kind="fairseq", source_dictionary=source)
    assert not (tmp_path / "other").exists()


def test_the_command_reads_opennmt_with_its_vocabularies(tmp_path):
    opt, reference, words = opennmt_model()
    torch.save(reference.checkpoint(opt, words), tmp_path / "model.pt")
    convert_folder(tmp_path / "model.pt", tmp_path / "ours", kind="opennmt", log=no_log)
    ours = vt.VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "ours")
    assert_same_logits(reference, ours, ["right"])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    # sources end in nothing there
    assert tokenizer("word3 word41 other").input_ids == [7, 45, 0]
    written = AutoTokenizer.from_pretrained(tmp_path / "ours" / "target_tokenizer")
    assert written.decode([2, 4, 40, 3], skip_special_tokens=True) == "word0 word36"
