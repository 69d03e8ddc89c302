"""Bad input of every kind ends in one sentence and status 2, in no time, with nothing left behind.

A row is a command as a shell takes it, or a recipe, or a damaged file, and what the sentence says of it: parts that follow
one another, in any case. Commands run in this process, in one folder (`workspace`) that has

- `model/` and `lm/` (a translator and a language model), `encoder/` (an encoder, which writes nothing), `run/` (with two
  checkpoints), `notokenizer/`, `folder/` (empty);
- `source.txt` and `target.txt` (nine lines), `short.txt` (eight), `empty.txt`, `latin1.txt`, `mac.txt`, `cut.gz`;
- `recipe.yaml` (translation), `lm.yaml`, `ablation.yaml`.

A row more is a line more.
"""

import gzip
import json
import shlex
import shutil
import sys
import time

import pytest
import yaml

from runs import recipe_values, reversed_words, save_translator, word_tokenizer
from tiny import tiny_model
from vanilla_transformer.cli import main

LONGEST = 5.0
"""Seconds of processor time that a row may take; most take a hundredth."""

ALIAS_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""500 bytes that stand for 400 million values."""

# a row is a line, however long
# fmt: off
COMMANDS = [
    ("recipe", "name a recipe, or give --list or --fields"),
    ("recipe quick_translation --list", "name a recipe, or give --list or --fields"),
    ("recipe quick_translaton", "there is no recipe 'quick_translaton'; did you mean 'quick_translation'?"),
    ("recipe ../../README", "there is no recipe '../../README'"),
    ("train ''", "the argument after train is empty"),
    ("train-tokenizer source.txt -o ''", "the argument after -o is empty"),
    ("train-tokenizer source.txt --output=", "the argument of --output is empty"),
    ("average run -o ''", "the argument after -o is empty"),
    ("generate -m '' -i source.txt", "the argument after -m is empty"),
    ("inspect -m model ''", "the argument after model is empty"),
    ("inspect -m model '   '", "The source '   ' has no token"),
    ("push model me/x --token ''", "the argument after --token is empty"),
    ("push model me/x --token 'hf_abcdefgh12345678 x'", "the access token holds a space"),
    ("generate -m model -i source.txt --num-beams 100000", "Invalid value for '--num-beams'"),
    ("generate -m model -i source.txt --length-penalty nan", "--length-penalty nan must be a number from -100 to 100"),
    ("generate -m model -i source.txt --length-penalty inf", "--length-penalty inf must be"),
    ("generate -m model -i source.txt --length-penalty 1e308", "--length-penalty 1e+308 must be"),
    ("generate -m model -i source.txt --max-new-tokens 99999999999999999999", "Invalid value for '--max-new-tokens'"),
    ("generate -m lm -i source.txt --sample --temperature 0", "--temperature 0.0 must be above 0"),
    ("generate -m lm -i source.txt --sample --temperature nan", "--temperature nan must be above 0"),
    ("demo -o source.txt", "source.txt is not a folder"),
    ("train", "Missing argument 'recipe'"),
    ("train recipe.yaml --foo", "No such option: --foo"),
    ("train gone.yaml", "there"),
    ("train folder", "there"),
    ("train recipe.yaml --task foo", "recipe.yaml is a recipe for seq2seq, not for foo."),
    ("train recipe.yaml --task causal-lm", "recipe.yaml is a recipe for seq2seq, not for causal-lm."),
    ("train recipe.yaml --resume --overwrite", "--resume"),
    ("train latin1.txt", "latin1.txt"),
    ("train model/model.safetensors", "model/model.safetensors"),
    ("ablate recipe.yaml", "recipe.yaml has no ablation section; add one with the cells of the"),
    ("ablate gone.yaml", "there"),
    ("ablate ablation.yaml ablation.seeds=[]", "ablation.seeds=[] must be a list of different whole numbers"),
    ("ablate ablation.yaml ablation.seeds=x", "ablation.seeds='x'"),
    ("ablate ablation.yaml ablation.foo=1", "unknown field ablation.foo; the choices are cells, grid, seeds."),
    ("train ablation.yaml", "ablation.yaml has an ablation section, so it is a recipe for many runs:"),
    ("train-tokenizer", "Missing argument 'texts'"),
    ("train-tokenizer source.txt", "Missing option '--output' / '-o'"),
    ("train-tokenizer gone.txt -o tok", "there"),
    ("train-tokenizer source.txt -o source.txt", "source.txt is not a folder"),
    ("train-tokenizer source.txt -o /proc/x", "/proc/x cannot be written: no such file or directory"),
    ("train-tokenizer source.txt -o source.txt/tok", "source.txt/tok cannot be written: not a directory"),
    ("train-tokenizer source.txt -o tok --vocab-size 0", "vocab_size=0 is too small for a byte-level tokenizer: 4 special tokens"),
    ("train-tokenizer source.txt -o tok --vocab-size -1", "vocab_size=-1 is too small for a byte-level tokenizer: 4 special tokens"),
    ("train-tokenizer source.txt -o tok --vocab-size 10", "vocab_size=10 is too small for a byte-level tokenizer: 4 special tokens"),
    ("train-tokenizer source.txt -o tok --vocab-size 99999", "The texts give only 290 entries, not the vocab_size="),
    ("train-tokenizer source.txt -o tok --vocab-size 1000000000", "vocab_size="),
    ("train-tokenizer source.txt -o tok --vocab-size 99999999999999999999999", "vocab_size="),
    ("train-tokenizer source.txt -o tok --vocab-size x", "Invalid value for '--vocab-size'"),
    ("train-tokenizer empty.txt -o tok", "There"),
    ("train-tokenizer latin1.txt -o tok", "latin1.txt, line 2: not valid UTF-8; convert the text to UTF-8 first."),
    ("train-tokenizer mac.txt -o tok", "mac.txt: its lines end in carriage returns alone; convert them to line"),
    ("train-tokenizer cut.gz -o tok", "cut.gz: damaged after line 0"),
    ("train-tokenizer folder -o tok", "folder is a folder"),
    ("generate", "Missing option '--model' / '-m'"),
    ("generate -m folder", "folder holds no config.json"),
    ("generate -m source.txt", "source.txt is a file"),
    ("generate -m ./gone -i source.txt", "./gone is not there"),
    ("generate -m a/b/c -i source.txt", "a/b/c is not there"),
    ("generate -m encoder -i source.txt", "encoder is an encoder, which writes no text"),
    ("generate -m notokenizer -i source.txt", "notokenizer holds no tokenizer; save it there with"),
    ("generate -m model -i gone.txt", "there"),
    ("generate -m model -i folder", "folder is a folder"),
    ("generate -m model -i source.txt -o folder", "folder is a folder"),
    ("generate -m model -i source.txt -o gone/x", "gone/x cannot be written: there"),
    ("generate -m model -i source.txt -o .", ". is a folder"),
    ("generate -m model -i source.txt -o source.txt/x", "source.txt/x cannot be written: not a directory"),
    ("generate -m model -i source.txt -o /proc/x", "/proc/x cannot be written: no such file or directory"),
    ("generate -m model -i source.txt -o /dev/full", "/dev/full: no space left on device; make room."),
    ("generate -m model -i source.txt --num-beams 0", "Invalid value for '--num-beams'"),
    ("generate -m model -i source.txt --num-beams x", "Invalid value for '--num-beams'"),
    ("generate -m model -i source.txt --n-best 0", "Invalid value for '--n-best'"),
    ("generate -m model -i source.txt --length-penalty x", "Invalid value for '--length-penalty'"),
    ("generate -m model -i source.txt --max-new-tokens 0", "Invalid value for '--max-new-tokens'"),
    ("generate -m model -i source.txt --device foo", "--device 'foo' is not a device of torch"),
    ("generate -m model -i source.txt --device meta", "the device 'meta' is not here"),
    ("generate -m model -i source.txt --device cuda:7", "the device 'cuda:7' is not here"),
    ("generate -m model -i source.txt --device cpu:3", "the device 'cpu:3' is not here"),
    ("generate -m model -i source.txt --temperature 1", "--temperature and --seed"),
    ("generate -m model -i source.txt --seed 1", "--temperature and --seed"),
    ("generate -m lm -i source.txt --sample --seed -1", "--seed"),
    ("generate -m lm -i source.txt --sample --seed 99999999999999999999", "--seed"),
    ("generate -m model -i source.txt --batch-tokens 0", "Invalid value for '--batch-tokens'"),
    ("generate -m model -i source.txt --read-ahead 0", "Invalid value for '--read-ahead'"),
    ("generate -m model -i source.txt --revision nonsense", "model is a folder and has no revision nonsense; leave it out, or give a"),
    ("evaluate", "Missing option '--source'"),
    ("evaluate -m gone --source source.txt --target target.txt", "gone is not a folder here"),
    ("evaluate -m model --source gone.txt --target target.txt", "There"),
    ("evaluate -m model --source source.txt --target gone.txt", "There"),
    ("evaluate -m model --source source.txt --target short.txt", "source.txt has 9 lines but short.txt has 8; line by line they must"),
    ("evaluate -m model --source empty.txt --target empty.txt", "empty.txt is empty."),
    ("evaluate -m model --source latin1.txt --target latin1.txt", "latin1.txt, line 2: not valid UTF-8; convert the text to UTF-8 first."),
    ("evaluate -m model --source source.txt --target target.txt --tokenize foo", "sacrebleu has no tokenizer 'foo'"),
    ("evaluate -m model --source source.txt --target target.txt -o folder", "folder is a folder"),
    ("evaluate -m model --source source.txt --target target.txt -o gone/x", "gone/x cannot be written: there"),
    ("evaluate -m model --source source.txt --target target.txt --num-beams 0", "Invalid value for '--num-beams'"),
    ("evaluate -m lm --source source.txt --target target.txt --metrics foo", "there"),
    ("evaluate -m model --source folder --target target.txt", "folder is a folder, not a file."),
    ("score", "Missing option '--hypotheses'"),
    ("score --hypotheses source.txt --references target.txt --resamples -1", "Invalid value for '--resamples'"),
    ("score --hypotheses source.txt --references target.txt -o gone/x", "gone/x cannot be written: there"),
    ("score --hypotheses source.txt --references target.txt -o folder", "folder is a folder"),
    ("average", "Missing argument 'checkpoints'"),
    ("average run", "Missing option '--output' / '-o'"),
    ("average gone -o avg", "gone holds no checkpoint-N folders"),
    ("average run -o run", "run is not empty"),
    ("average run -o .", ". is not empty"),
    ("average run -o source.txt", "source.txt is not a folder"),
    ("average run -o /proc/x", "/proc/x cannot be written: no such file or directory"),
    ("average run -o avg --last 0", "Invalid value for '--last'"),
    ("average run -o avg --last 1 --best 1", "--last and --best choose different checkpoints of a run"),
    ("average run -o avg --metric bleu", "--metric says which checkpoints are the best"),
    ("average run -o avg --best 2", "run has no recipe.yaml that says which score is meant"),
    ("average run -o avg --best 2 --metric bleu", "no checkpoint of run has the score 'bleu': it was not evaluated;"),
    ("average run/checkpoint-1 -o avg --last 2", "--last and --best choose from the folder of a run, but checkpoints were"),
    ("average run/checkpoint-1 lm -o avg", "lm does not fit run/checkpoint-1: weight"),
    ("average folder -o avg", "folder holds no checkpoint-N folders"),
    ("average source.txt -o avg", "source.txt holds no checkpoint-N folders"),
    ("average run/checkpoint-1 source.txt -o avg", "source.txt holds no model.safetensors"),
    ("convert", "Missing argument 'model'"),
    ("convert folder out2", "folder holds no config.json"),
    ("convert model", "Missing argument 'output'"),
    ("convert model out2", "VanillaTransformerForConditionalGeneration is a model of this package"),
    ("convert model run", "run is not empty"),
    ("convert model . --to-transformers", ". is not empty"),
    ("convert model source.txt --to-transformers", "source.txt is not a folder"),
    ("convert model out2 --to-transformers --family foo", "unknown family 'foo'; the families are marian, pegasus, bart, mbart,"),
    ("convert lm out2 --to-transformers --family bert", "VanillaTransformerForCausalLM cannot be converted: bert has no class"),
    ("convert model out2 --family bart", "--family says what --to-transformers makes"),
    ("convert model out2 --kind foo", "--kind foo is unknown; it is transformers, fairseq or opennmt."),
    ("convert model out2 --kind fairseq", "there"),
    ("convert source.txt out2 --kind fairseq", "source.txt"),
    ("convert source.txt out2 --kind opennmt", "source.txt"),
    ("convert model out2 --source-dictionary x", "--source-dictionary and --target-dictionary are those of --kind fairseq."),
    ("convert model out2 --kind opennmt --to-transformers", "--kind opennmt reads a file; --to-transformers and --revision have no"),
    ("push", "Missing argument 'folder'"),
    ("push gone me/x", "gone"),
    ("push folder me/x", "folder"),
    ("push source.txt me/x", "source.txt"),
    ("push model 'me/ x'", "model was not pushed to me/ x: Repo id must use alphanumeric chars,"),
    ("push model a/b/c --dry-run", "Repo id must be in the form 'repo_name'"),
    ("push model ../x --dry-run", "Repo id must"),
    ("push model a/b/c", "model was not pushed to a/b/c: Repo id must be in the form 'repo_name'"),
    ("inspect", "Missing argument 'source'"),
    ("inspect -m model red -o a.foo", "a.foo: no picture is written as .foo"),
    ("inspect -m model red -o gone2/x.png", "gone2/x.png cannot be written: there"),
    ("inspect -m model red -o folder", "folder is a folder"),
    ("inspect -m model red --kind foo", "--kind foo is unknown; it is cross, encoder or decoder."),
    ("inspect -m model red --layer 9", "There"),
    ("inspect -m model red --layer x", "Invalid value for '--layer'"),
    ("inspect -m lm red", "encoder-decoder"),
    ("inspect -m encoder red", "encoder is an encoder, which writes no text"),
    ("explain", "name either a preset, a folder or a Hub id, or --list for all presets."),
    ("explain foo", "'foo' is neither a preset nor a folder; --list shows the presets."),
    ("explain gpt3", "'gpt3' is neither a preset nor a folder; did you mean 'gpt2'?"),
    ("explain ./gone", "./gone is not there"),
    ("explain folder", "folder holds no config.json"),
    ("explain source.txt", "source.txt is a file"),
    ("explain --list gpt2", "name either a preset, a folder or a Hub id, or --list for all presets."),
    ("demo nonsense", "'nonsense'"),
    ("demo model.dropuot=1", "unknown field model.dropuot; did you mean 'dropout'?"),
    ("demo model.dropout=7", "model: VanillaTransformerConfig: dropout=7 must be at least 0 and below"),
    ("generate -m model -i latin1.txt", "latin1.txt, line 2: not valid UTF-8; convert the text to UTF-8 first."),
    ("generate -m model -i mac.txt", "mac.txt: its lines end in carriage returns alone; convert them to line"),
    ("generate -m model -i cut.gz", "cut.gz: damaged after line 0"),
    ("generate -m model -i source.txt --n-best 3 --num-beams 2", "3 outputs of each text need at least as many beams, not 2."),
    ("generate -m lm -i source.txt --sample --temperature -1", "--temperature -1.0 must be above 0"),
    ("score --hypotheses source.txt --references gone.txt", "There"),
    ("score --hypotheses source.txt --references short.txt", "short.txt has 8 lines but source.txt has 9; line by line they must"),
    ("score --hypotheses source.txt --references target.txt --metrics foo", "there"),
    ("score --hypotheses empty.txt --references empty.txt", "empty.txt is empty."),
    ("trian recipe.yaml", "No such command 'trian'"),
    ("score --hypotheses short.txt --references target.txt", "target.txt has 9 lines but short.txt has 8"),
    ("score --hypotheses source.txt short.txt --references target.txt", "target.txt has 9 lines but short.txt has 8"),
    ("score --hypotheses gone.txt --references target.txt", "There is no file gone.txt"),
    ("score --hypotheses folder --references target.txt", "folder is a folder"),
    ("score --hypotheses empty.txt --references target.txt", "empty.txt is empty"),
    ("score --hypotheses latin1.txt --references target.txt", "latin1.txt, line 2: not valid UTF-8"),
    ("score --hypotheses mac.txt --references target.txt", "mac.txt ends its lines in carriage returns"),
    ("score --hypotheses cut.gz --references target.txt", "cut.gz cannot be unpacked"),
    ("score --hypotheses source.txt --references target.txt --tokenize foo", "no tokenizer 'foo'"),
    ("score --hypotheses source.txt --references target.txt --metrics blue", "no metric 'blue'; did you mean 'bleu'?"),
    ("score --hypotheses source.txt --references target.txt --resamples 1", "1 bootstrap resamples give no interval"),
    ("score --hypotheses source.txt --references target.txt --resamples -5", "--resamples"),
    ("score --hypotheses source.txt --references target.txt --comet x", "pip install unbabel-comet"),
    ("score --hypotheses source.txt --references target.txt -o gone/scores.json", "gone"),
    ("score --hypotheses source.txt", "Missing option '--references'"),
    ("evaluate -m gone --source source.txt --target target.txt --tokenize foo", "no tokenizer 'foo'"),
    ("evaluate -m gone --source source.txt --target short.txt", "source.txt has 9 lines but short.txt has 8"),
    ("evaluate --source source.txt --target target.txt", "give either a --model, or --hypotheses"),
    ("evaluate --source source.txt --target target.txt --hypotheses short.txt", "has 9 lines but short.txt has 8"),
    ("evaluate --source source.txt --target target.txt --hypotheses target.txt --device cpu", "only with --model"),
    ("serve gone --port 0", "gone"),
    ("serve notokenizer --port 0 --device cpu", "holds no tokenizer"),
    ("serve model --port 0 --device cuda:7", "cuda:7"),
    ("serve model --port 0 --backend tensorflow", "no backend 'tensorflow'; there is torch"),
    ("serve model --port 70000", "--port"),
    ("serve model --port 0 --host 203.0.113.7", "cannot listen to port 0 of 203.0.113.7"),
    ("serve model --port 0 --timeout 0", "--timeout"),
    ("serve model --port 0 --timeout nan", "--timeout"),
    ("serve model --port 0 --timeout inf", "--timeout"),
]

RECIPES = [
    ("training.lr_scheduler_kwargs=3", "training.lr_scheduler_kwargs='3' must be a mapping of fields to values"),
    ("training.lr_scheduler_kwargs='{foo: 1}'", "unknown field training.lr_scheduler_kwargs.foo; it has no fields."),
    ("training.gradient_checkpointing_kwargs=3", "training.gradient_checkpointing_kwargs='3' must be a mapping of fields"),
    ("training.fsdp_config=3", "training.fsdp_config='3' must be a mapping of fields to values or the path of a JSON file"),
    ("training.accelerator_config=3", "training.accelerator_config='3' must be a mapping of fields to values or the path"),
    ("training.optim_args=3", "training.optim_args='3' must be pairs, as in"),
    ("generation.bad_words_ids=3", "generation.bad_words_ids=3 is of the wrong type: it must be a list or null"),
    ("generation.suppress_tokens=x", "generation.suppress_tokens='x' is of the wrong type"),
    ("generation.do_sample=3", "generation.do_sample=3 is of the wrong type: it must be true or false"),
    ("generation.eos_token_id=x", "generation.eos_token_id='x' is of the wrong type: it must be a whole number"),
    ("generation.pad_token_id=[1]", "generation.pad_token_id=[1] is of the wrong type"),
    ("generation.watermarking_config=3", "generation.watermarking_config=3 is of the wrong type: it must be a mapping"),
    ("generation.return_dict_in_generate=true", "generation.return_dict_in_generate cannot be used in a recipe"),
    ("generation.num_return_sequences=2", "generation.num_return_sequences cannot be used in a recipe"),
    ("generation.prompt_lookup_num_tokens=3", "generation.prompt_lookup_num_tokens cannot be used in a recipe"),
    ("generation.stop_strings=[a]", "generation.stop_strings cannot be used in a recipe"),
    ("generation.num_beam_groups=2", "generation.num_beam_groups cannot be used in a recipe, as transformers does this by code"),
    ("generation.guidance_scale=2", "generation.guidance_scale cannot be used in a recipe"),
    ("model.frobnicate=3", "unknown field model.frobnicate; no field has a name like it."),
    ("nonsense", "'nonsense'"),
    ("=3", "'=3'"),
    ("task=3", "task: '3' is unknown; the choices are causal-lm, constituency-parsing, masked-lm,"),
    ("task=", "task=None is of the wrong type: it must be text (in quotes, where null"),
    ("preset=foo", "preset: 'foo' is unknown; the choices are fairseq, fairseq-iwslt,"),
    ("preset=transformer-base", "preset: 'transformer-base' is unknown; an architecture is named by"),
    ("seed=-1", "seed=-1 must not be negative."),
    ("seed=x", "seed='x' is of the wrong type: it must be a whole number"),
    ("seed=1.5", "seed=1.5 is of the wrong type: it must be a whole number"),
    ("seed=99999999999999999999", "seed=1e+20 must be at most 4,294,967,295."),
    ("max_minutes=0", "max_minutes=0.0 must be above 0."),
    ("max_minutes=-1", "max_minutes=-1.0 must be above 0."),
    ("max_minutes=nan", "max_minutes=nan compares with nothing"),
    ("max_minutes=x", "max_minutes='x' is of the wrong type: it must be a number"),
    ("start_from=./gone", "start_from: ./gone is not there"),
    ("start_from=folder", "start_from: folder holds no config.json"),
    ("start_from=source.txt", "start_from: source.txt is a file"),
    ("start_from=model tokenizer.path=model", "tokenizer.path cannot be given with start_from, which brings its"),
    ("output_dir=source.txt", "output_dir source.txt is a file"),
    ("output_dir=", "output_dir=None is of the wrong type: it must be text (in quotes, where"),
    ("output_dir=run", "output_dir run is not empty"),
    ("output_dir=/proc/x", "/proc/x cannot be made: No such file or directory"),
    ("foo=1", "unknown field foo; no field has a name like it."),
    ("data=3", "data must be a mapping of fields to values, not 3."),
    ("data.train=3", "data.train=3 is of the wrong type: it must be a mapping of fields to"),
    ("data.train.source=gone.txt", "There"),
    ("data.train.source=folder", "folder is a folder, not a file."),
    ("data.train.source=empty.txt", "empty.txt is empty."),
    ("data.train.source=latin1.txt", "latin1.txt has 2 lines but"),
    ("data.train.source=source.txt", "source.txt has 9 lines but"),
    ("data.train.source=3", "There"),
    ("data.train.foo=3", "unknown field data.train.foo; the choices are encoding, format, name,"),
    ("data.train.path=source.txt", "Cannot tell what kind of file source.txt is: use a name that ends in"),
    ("data.validation=", "data.validation=None is of the wrong type: it must be a mapping of"),
    ("data.validation.source=empty.txt data.validation.target=empty.txt", "empty.txt is empty."),
    ("data.test=3", "data.test=3 is of the wrong type: it must be a mapping of fields to"),
    ("data.test.train.path=x", "data.test.train: a test needs a name of its own, in letters"),
    ("data.test.x=3", "data.test.x must be a mapping of fields to values, not 3."),
    ("data.test.x.path=gone", "Couldn't reach 'gone' on the Hub (OfflineModeIsEnabled)"),
    ("data.max_source_length=0", "data.max_source_length=0 must be at least 1."),
    ("data.max_source_length=-3", "data.max_source_length=-3 must be at least 1."),
    ("data.max_source_length=1", "No row is short enough to train on (at most source of 0 words, target"),
    ("data.max_length=3", "data.max_length"),
    ("data.block_size=3", "data.block_size"),
    ("data.masked_share=0.5", "data.masked_share"),
    ("data.train.portion=2", "data.train: portion='2' must be two numbers, as in [0, 0.9]."),
    ("data.train.portion=0.5", "data.train: portion='0.5' must be two numbers, as in [0, 0.9]."),
    ("tokenizer=3", "tokenizer must be a mapping of fields to values, not 3."),
    ("tokenizer.kind=foo", "tokenizer.kind"),
    ("tokenizer.kind=wordpiece", "tokenizer.kind"),
    ("tokenizer.vocab_size=0", "tokenizer.vocab_size=0 must be at least 1."),
    ("tokenizer.vocab_size=-5", "tokenizer.vocab_size=-5 must be at least 1."),
    ("tokenizer.vocab_size=10", "vocab_size=10 is too small for a byte-level tokenizer: 4 special tokens"),
    ("tokenizer.vocab_size=100000", "The texts give only 298 entries, not the vocab_size="),
    ("tokenizer.vocab_size=x", "tokenizer.vocab_size='x' is of the wrong type: it must be a whole number"),
    ("tokenizer.vocab_size=1.5", "tokenizer.vocab_size=1.5 is of the wrong type: it must be a whole number"),
    ("tokenizer.shared=3", "tokenizer.shared=3 is of the wrong type: it must be true or false."),
    ("tokenizer.lowercase=x", "tokenizer.lowercase='x' is of the wrong type: it must be true or false."),
    ("tokenizer.path=folder", "folder holds no tokenizer; save it there with tokenizer.save_pretrained."),
    ("tokenizer.path=source.txt", "source.txt is a file"),
    ("model=3", "model=3 is of the wrong type: it must be a mapping of fields to values."),
    ("model.preset=foo", "model: VanillaTransformerConfig: unknown preset 'foo'; the presets are"),
    ("model.preset=3", "model: VanillaTransformerConfig: unknown preset '3'; the presets are"),
    ("model.foo=1", "unknown field model.foo; no field has a name like it."),
    ("model.architecture=foo", "model: VanillaTransformerConfig: Field 'architecture' expected one of"),
    ("model.architecture=decoder-only", "task seq2seq needs model.architecture=encoder-decoder, not decoder-only."),
    ("model.hidden_size=0", "model: VanillaTransformerConfig: hidden_size=0 must be at least 1."),
    ("model.hidden_size=-4", "model: VanillaTransformerConfig: hidden_size=-4 must be at least 1."),
    ("model.hidden_size=15", "model: VanillaTransformerConfig: hidden_size=15 is not a multiple of"),
    ("model.hidden_size=x", "model: VanillaTransformerConfig: Field 'hidden_size' expected int, got"),
    ("model.hidden_size=1.5", "model: VanillaTransformerConfig: Field 'hidden_size' expected int, got"),
    ("model.num_attention_heads=0", "model: VanillaTransformerConfig: num_attention_heads=0 must be at least"),
    ("model.num_attention_heads=3", "model: VanillaTransformerConfig: hidden_size=16 is not a multiple of"),
    ("model.num_hidden_layers=0", "model: VanillaTransformerConfig: num_hidden_layers=0 must be at least 1."),
    ("model.num_hidden_layers=-1", "model: VanillaTransformerConfig: num_hidden_layers=-1 must be at least"),
    ("model.num_hidden_layers=1000000000", "model: 5,568,000,004,480 parameters need 41,485 GB for weights and"),
    ("model.intermediate_size=0", "model: VanillaTransformerConfig: intermediate_size=0 must be at least 1."),
    ("model.dropout=7", "model: VanillaTransformerConfig: dropout=7 must be at least 0 and below"),
    ("model.dropout=-1", "model: VanillaTransformerConfig: dropout=-1 must be at least 0 and"),
    ("model.dropout=1", "model: VanillaTransformerConfig: dropout=1 must be at least 0 and below"),
    ("model.dropout=nan", "model: VanillaTransformerConfig: dropout=nan must be at least 0 and"),
    ("model.dropout=x", "model: VanillaTransformerConfig: Field 'dropout' with value 'x' doesn't"),
    ("model.attention_dropout=2", "model: VanillaTransformerConfig: attention_dropout=2 must be at least 0"),
    ("model.label_smoothing=1", "model: VanillaTransformerConfig: label_smoothing=1 must be at least 0"),
    ("model.label_smoothing=-1", "model: VanillaTransformerConfig: label_smoothing=-1 must be at least 0"),
    ("model.num_labels=3", "model.num_labels follows from the data; leave it out."),
    ("model.position_encoding=foo", "model: VanillaTransformerConfig: Field 'position_encoding' expected one"),
    ("model.norm_position=foo", "model: VanillaTransformerConfig: Field 'norm_position' expected one of"),
    ("model.activation=foo", "unknown field model.activation; did you mean 'activation_dropout'?"),
    ("model.hidden_act=foo", "model: VanillaTransformerConfig: hidden_act='foo'"),
    ("model.pad_token_id=-7", "model: VanillaTransformerConfig: pad_token_id=-7"),
    ("model.pad_token_id=999999", "model: VanillaTransformerConfig: pad_token_id="),
    ("model.initializer_range=-1", "model: VanillaTransformerConfig: Field 'initializer_range' expected"),
    ("model.initializer_range=nan", "model: VanillaTransformerConfig: initializer_range=nan must not be"),
    ("model.norm_eps=-1", "model: VanillaTransformerConfig: Field 'norm_eps' expected float, got"),
    ("model.max_position_embeddings=0", "model: VanillaTransformerConfig: max_position_embeddings=0 must be at"),
    ("model.sliding_window=0", "model: VanillaTransformerConfig: sliding_window=0 must be at least 1."),
    ("model.num_key_value_heads=3", "model: VanillaTransformerConfig: num_attention_heads=2 is not a"),
    ("model.position_encoding=learned model.max_position_embeddings=10", "texts of 256 tokens (data.max_source_length and max_target_length) are"),
    ("batches=3", "batches must be a mapping of fields to values, not 3."),
    ("batches.max_tokens=0", "batches.max_tokens=0 must be at least 1."),
    ("batches.max_tokens=-1", "batches.max_tokens=-1 must be at least 1."),
    ("batches.max_tokens=x", "batches.max_tokens='x' is of the wrong type: it must be a whole number"),
    ("batches.max_sentences=0", "batches.max_sentences=0 must be at least 1."),
    ("batches.count=foo", "batches.count='foo' must be 'longer' or 'both'."),
    ("batches.packing=x", "batches.packing='x' is of the wrong type: it must be true or false."),
    ("training=3", "training=3 is of the wrong type: it must be a mapping of fields to"),
    ("training.foo=1", "unknown field training.foo; no field has a name like it."),
    ("training.seed=1", "training.seed is set by seed in a recipe; set it there."),
    ("training.output_dir=x", "training.output_dir is set by output_dir in a recipe; set it there."),
    ("training.label_smoothing_factor=0.1", "training.label_smoothing_factor is set by model.label_smoothing in a"),
    ("training.per_device_train_batch_size=3", "training.per_device_train_batch_size is set by batches.max_tokens in a"),
    ("training.group_by_length=true", "unknown field training.group_by_length; no field has a name like it."),
    ("training.auto_find_batch_size=true", "training.auto_find_batch_size has no effect on batches by token budget;"),
    ("training.hub_token=x", "training.hub_token would stand in the recipe that is saved and pushed"),
    ("training.hub_strategy=checkpoint", "training.hub_strategy must be end: a run is pushed when it is finished;"),
    ("training.learning_rate=-1", "training.learning_rate=-1 must not be negative."),
    ("training.learning_rate=x", "training.learning_rate='x' is of the wrong type: it must be a number"),
    ("training.learning_rate=nan", "training.learning_rate='nan' is of the wrong type: it must be a number"),
    ("training.learning_rate=inf", "training.learning_rate='inf' is of the wrong type: it must be a number"),
    ("training.learning_rate=noam training.warmup_steps=0", "training.warmup_steps=0: learning_rate noam needs a number of updates"),
    ("training.max_steps=0", "training.max_steps and training.num_train_epochs leave no update to"),
    ("training.max_steps=x", "training.max_steps='x' is of the wrong type: it must be a whole number"),
    ("training.max_steps=1.5", "training.max_steps=1.5 is of the wrong type: it must be a whole number"),
    ("training.num_train_epochs=0", "training.max_steps and training.num_train_epochs leave no update to"),
    ("training.num_train_epochs=-1", "training.num_train_epochs=-1 must not be negative."),
    ("training.num_train_epochs=nan", "training.num_train_epochs=nan compares with nothing"),
    ("training.num_train_epochs=1e300", "training.num_train_epochs=1e+300 must be at most 1,000,000; a run ends"),
    ("training.warmup_steps=-1", "training.warmup_steps=-1 must not be negative."),
    ("training.warmup_steps=x", "training.warmup_steps='x' is of the wrong type: it must be a number"),
    ("training.save_steps=-1", "training.save_steps=-1 must be above 0."),
    ("training.eval_steps=-1", "training.eval_steps=-1 must be above 0."),
    ("training.logging_steps=0", "training.logging_steps=0 must be above 0."),
    ("training.gradient_accumulation_steps=0", "training.gradient_accumulation_steps=0 must be at least 1."),
    ("training.dataloader_num_workers=-1", "training.dataloader_num_workers=-1 must not be negative."),
    ("training.save_total_limit=-1", "training.save_total_limit=-1 must be at least 1."),
    ("training.max_grad_norm=-1", "training.max_grad_norm=-1 must not be negative."),
    ("training.max_grad_norm=nan", "training.max_grad_norm=nan compares with nothing"),
    ("training.adam_beta1=2", "training.adam_beta1=2 must be below 1."),
    ("training.adam_beta2=-1", "training.adam_beta2=-1 must not be negative."),
    ("training.adam_epsilon=-1", "training.adam_epsilon=-1 must not be negative."),
    ("training.weight_decay=-1", "training.weight_decay=-1 must not be negative."),
    ("training.weight_decay=nan", "training.weight_decay=nan compares with nothing"),
    ("training.neftune_noise_alpha=nan", "training.neftune_noise_alpha=nan compares with nothing"),
    ("training.lr_scheduler_type=foo", "training.lr_scheduler_type='foo' is unknown; the choices are constant,"),
    ("training.report_to=foo", "training.report_to='foo' is none of azure_ml, comet_ml, mlflow,"),
    ("training.eval_strategy=foo", "training: foo is not a valid IntervalStrategy, please select one of"),
    ("training.save_strategy=foo", "training: foo is not a valid SaveStrategy, please select one of ['no',"),
    ("training.metric_for_best_model=foo", "training.metric_for_best_model='foo'"),
    ("training.fp16=true", "training.fp16 needs an accelerator, and there is none here; set"),
    ("training.bf16=x", "training.bf16='x' is of the wrong type: it must be true or false."),
    ("training.per_device_eval_batch_size=0", "training.per_device_eval_batch_size=0 must be at least 1."),
    ("training.per_device_eval_batch_size=-1", "training.per_device_eval_batch_size=-1 must be at least 1."),
    ("training.predict_with_generate=false", "training.metric_for_best_model='bleu' is of generated text; set it to"),
    ("training.gradient_checkpointing=x", "training.gradient_checkpointing='x' is of the wrong type: it must be"),
    ("training.logging_strategy=foo", "training: foo is not a valid IntervalStrategy, please select one of"),
    ("training.save_only_model=x", "training.save_only_model='x' is of the wrong type: it must be true or"),
    ("training.resume_from_checkpoint=x", "training.resume_from_checkpoint contradicts how a recipe's run is"),
    ("averaging=3", "averaging must be a mapping of fields to values, not 3."),
    ("averaging.last=-1", "averaging.last=-1 must not be negative."),
    ("averaging.last=x", "averaging.last='x' is of the wrong type: it must be a whole number"),
    ("averaging.best=-1", "averaging.best=-1 must not be negative."),
    ("averaging.best=2 training.eval_strategy=no", "averaging.best goes by evaluations; set training.eval_strategy to steps"),
    ("averaging.ema=1", "averaging.ema=1.0 must be between 0 and 1"),
    ("averaging.ema=0", "averaging.ema=0.0 must be between 0 and 1"),
    ("averaging.ema=nan", "averaging.ema=nan compares with nothing"),
    ("averaging.foo=1", "unknown field averaging.foo; the choices are best, ema, last."),
    ("early_stopping.patience=0", "early_stopping.patience=0 must be at least 1."),
    ("early_stopping.patience=x", "early_stopping.patience='x' is of the wrong type: it must be a whole"),
    ("early_stopping.threshold=-1", "early_stopping.threshold=-1.0 must not be negative."),
    ("early_stopping.threshold=nan", "early_stopping.threshold=nan compares with nothing"),
    ("evaluation.sentences=0", "evaluation.sentences=0 must be at least 1."),
    ("evaluation.num_beams=0", "evaluation.num_beams=0 must be at least 1."),
    ("evaluation.tokenize=foo", "evaluation.tokenize='foo'"),
    ("evaluation.foo=0", "unknown field evaluation.foo; the choices are num_beams, sentences,"),
    ("stop_on.loss_over_median=1", "stop_on.loss_over_median=1.0 must be above 1, or null for never."),
    ("stop_on.loss_over_median=nan", "stop_on.loss_over_median=nan compares with nothing"),
    ("stop_on.updates=0", "stop_on.updates=0 must be at least 1."),
    ("stop_on.non_finite=x", "stop_on.non_finite='x' is of the wrong type: it must be true or false."),
    ("generation=3", "generation=3 is of the wrong type: it must be a mapping of fields to"),
    ("generation.foo=1", "unknown field generation.foo; no field has a name like it."),
    ("generation.num_beams=0", "generation.num_beams=0 must be at least 1."),
    ("generation.num_beams=-1", "generation.num_beams=-1 must be at least 1."),
    ("generation.num_beams=x", "generation.num_beams='x' is of the wrong type: it must be a whole number"),
    ("generation.max_length=0", "generation.max_length=0 must be at least 1."),
    ("generation.max_new_tokens=0", "generation.max_new_tokens=0 must be at least 1."),
    ("generation.max_new_tokens=-1", "generation.max_new_tokens=-1 must be at least 1."),
    ("generation.length_penalty=nan", "generation.length_penalty=nan compares with nothing"),
    ("generation.length_penalty=inf", "generation.length_penalty=inf must be at most 100."),
    ("generation.length_penalty=x", "generation.length_penalty='x' is of the wrong type: it must be a number"),
    ("generation.length_penalty_form=foo", "generation.length_penalty_form='foo' must be 'power' or 'gnmt'."),
    ("generation.temperature=0", "generation.temperature=0 must be above 0."),
    ("generation.temperature=-1 generation.do_sample=true", "generation.temperature=-1 must be above 0."),
    ("generation.top_p=3 generation.do_sample=true", "generation.top_p=3 must be at most 1."),
    ("generation.max_length_over_source=x", "generation.max_length_over_source='x' is of the wrong type: it must be"),
    ("generation.no_repeat_ngram_size=-1", "generation.no_repeat_ngram_size=-1 must not be negative."),
    ("generation.repetition_penalty=0", "generation.repetition_penalty=0 must be above 0."),
    ("card=3", "card must be a mapping of fields to values, not 3."),
    ("card.license=foo", "card.license='foo'"),
    ("card.license=other", "card.license_name goes with card.license=other, and with no other"),
    ("card.license_name=x", "card.license_name goes with card.license=other, and with no other"),
    ("card.pipeline_tag=foo", "card.pipeline_tag='foo'"),
    ("card.watts=-1", "card.watts=-1.0 must be a number above 0."),
    ("card.watts=0", "card.watts=0.0 must be a number above 0."),
    ("card.grams_co2_per_kwh=-1", "card.grams_co2_per_kwh=-1.0 must be a number of at least 0."),
    ("card.foo=1", "unknown field card.foo; the choices are description, grams_co2_per_kwh,"),
    ("lm: data.train.source=x", "unknown field data.train.source; the choices are encoding, format,"),
    ("lm: data.max_source_length=3", "data.max_source_length"),
    ("lm: data.block_size=0", "data.block_size=0 must be at least 1."),
    ("lm: data.block_size=100000", "data.block_size="),
    ("lm: tokenizer.shared=false", "tokenizer.shared"),
    ("lm: evaluation.num_beams=2", "evaluation.num_beams"),
    ("lm: generation.num_beams=0", "generation.num_beams=0 must be at least 1."),
    ("lm: model.architecture=encoder-only", "task causal-lm needs model.architecture=decoder-only, not encoder-only."),
    ("lm: training.metric_for_best_model=bleu", "training.metric_for_best_model='bleu'"),
    ("lm: batches.packing=true task=token-classification", "source.txt is plain text, which holds no labels: give JSON lines, TSV,"),
    ("lm: task=sequence-classification", "source.txt is plain text, which holds no labels: give JSON lines, TSV,"),
    ("lm: task=masked-lm data.masked_share=1", "data.masked_share=1.0 must be between 0 and 1."),
    ("lm: task=masked-lm data.masked_share=0", "data.masked_share=0.0 must be between 0 and 1."),
    ("lm: data.train.format=foo", "data.train: Unknown data format 'foo': choose one of text, tsv, json,"),
    ("lm: data.train.path=gone", "Couldn't reach 'gone' on the Hub (OfflineModeIsEnabled)"),
    ("task=seq2sec", "task: 'seq2sec' is unknown; did you mean 'seq2seq'?"),
    ("output_dir=null", "output_dir=None is of the wrong type: it must be text"),
    ("data.train=[1", "data.train='[1' is not valid YAML"),
    ("data.train.portion=[0.5,0.2]", "data.train: portion=[0.5, 0.2] must be two shares that rise"),
    ("data.train.source=gone.en", "There is no file gone.en"),
    ("data.train.source=mac.txt", "mac.txt ends its lines in carriage returns"),
    ("data.train.source=cut.gz", "cut.gz cannot be unpacked"),
    ("data.train='{path: latin1.txt}'", "what kind of file latin1.txt is"),
    ("training.lr_scheduler_kwargs='{timescale: 3}'", "unknown field training.lr_scheduler_kwargs.timescale"),
    (
        "training.lr_scheduler_type=inverse_sqrt_decay training.lr_scheduler_kwargs='{decay_share: 2}'",
        "training.lr_scheduler_kwargs.decay_share=2 must be above 0 and at most 1",
    ),
    ("tokenizer.min_frequency=-1", "tokenizer.min_frequency=-1 must not be negative"),
    ("tokenizer.vocab_size=1000000000", "tokenizer.vocab_size=1000000000 must be at most 2,000,000"),
    ("model.hidden_size=1000000000", "parameters need", "GB for weights", "make the model smaller"),
    ("model.attn_implementation=eagr", "did you mean 'eager'?"),
    ("model.qqqqqq=1", "unknown field model.qqqqqq; no field has a name like it"),
    ("training.learning_rate=5,0e-4", "must be a number, such as 0.0005 or 5e-4"),
    ("training.max_steps=1000000000000000000000000000000", "training.max_steps=1e+30 must be at most"),
    ("training.num_train_epochs=.inf", "training.num_train_epochs=inf must be at most 1,000,000"),
    ("training.dataloader_num_workers=99999", "must be at most 256"),
    ("training.neftune_noise_alpha=-5", "must not be negative"),
    ("training.adam_beta2=1.5", "training.adam_beta2=1.5 must be below 1"),
    ("training.save_steps=0", "training.save_steps=0 must be above 0"),
    ("training.eval_steps=0", "training.eval_steps=0 must be above 0"),
    ("training.logging_steps=-1", "training.logging_steps=-1 must be above 0"),
    ("generation.max_length=-4", "generation.max_length=-4 must be at least 1"),
    ("lm: data.train.portion=half", "data.train: portion='half' must be two numbers"),
    ("lm: data.train.path=mac.txt", "mac.txt ends its lines in carriage returns"),
    ("lm: training.fp16_opt=1", "unknown field training.fp16_opt"),
]

RECIPE_FILES = [
    ("null", "given.yaml holds no recipe: it must be a mapping of fields to values."),
    ("[1, 2]", "given.yaml holds no recipe: it must be a mapping of fields to values."),
    ("text", "given.yaml holds no recipe: it must be a mapping of fields to values."),
    ("a: [1", "given.yaml is not valid YAML at line 1: expected ',' or ']', but got"),
    ("a: b: c", "given.yaml is not valid YAML at line 1: mapping values are not allowed"),
    ("\tx: 1", "given.yaml is not valid YAML at line 1: found character '\\t' that"),
    ("output_dir: x\noutput_dir: y\n", "given.yaml has the key 'output_dir' twice, at line 1 and line 2; leave"),
    ("output_dir: x\nmodel:\n  dropout: 0.1\n  dropout: 0.2\n", "given.yaml has the key 'dropout' twice, at line 3 and line 4; leave one"),
    ("? [a, b]\n: 1\n", "given.yaml has a key at line 1 that is not a name."),
    ("1: 2\n", "unknown field 1; no field has a name like it."),
    ("output_dir: !!python/object/apply:os.system ['true']\n", "given.yaml has the tag tag:yaml.org,2002:python/object/apply:os.system"),
    ("output_dir: &a [*a]\n", "given.yaml has the alias *a at line 1 within what it stands for."),
    ("output_dir: [x]\n", "output_dir=['x'] is of the wrong type: it must be text."),
    ("output_dir: null\n", "output_dir=None is of the wrong type: it must be text (in quotes, where"),
    ("output_dir: 2020-01-01\n", "data.train is missing: give source and target files, or a path."),
    ("output_dir: !!binary aGVsbG8=\n", "given.yaml has the tag tag:yaml.org,2002:binary at line 1, and tags are"),
    ("task: causal-lm\n", "output_dir is missing in the recipe."),
    ("output_dir: x\u0000y\ndata: {}\n", "given.yaml is not valid YAML at line 1: special characters are not"),
    ("output_dir: \"x\\0y\"\ndata: {train: {source: a, target: b}, validation: {source: a, target: b}}\n", "given.yaml holds a NUL character at line 1."),
    ("output_dir: x\ndata: {}\n", "data.train is missing: give source and target files, or a path."),
    ("output_dir: x\nmodel: {dropout: '0.1'}\n", "model: VanillaTransformerConfig: Field 'dropout' with value '0.1'"),
    ("output_dir: x\nmodel: [dropout]\n", "model=['dropout'] is of the wrong type: it must be a mapping of fields"),
    ("output_dir: x\ntraining: null\n", "training=None is of the wrong type: it must be a mapping of fields to"),
    ("a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n", "given.yaml holds more than 100,000 values, its aliases followed, by"),
    ("output_dir: &a [x,x,x,x,x,x,x,x,x]\ntask: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nseed: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\npreset: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\nstart_from: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nmax_minutes: [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n", "given.yaml holds more than 100,000 values, its aliases followed, by"),
    ("3", "must be a mapping"),
    ("- a\n- b\n", "given.yaml holds no recipe: it must be a mapping"),
    ("[" * 5000, "given.yaml is nested more than 50 levels deep"),
    ("{a: " * 5000, "given.yaml is nested more than 50 levels deep"),
    (ALIAS_BOMB, "given.yaml holds more than 100,000 values, its aliases followed"),
    ("a: &a [*a]", "the alias *a at line 1 within what it stands for"),
    ("seed: 1\ntask: seq2seq\nseed: 2\n", "the key 'seed' twice, at line 1 and line 3"),
    ("a: !!python/object/apply:os.system [id]", "has the tag", "tags are not read"),
    ('output_dir: "\\ud83d"', "half a character (a lone surrogate, as of a cut emoji) at line 1"),
    ('output_dir: "a\\0b"', "holds a NUL character at line 1"),
    (b"card: {title: gr\xfc\xdfe}", "given.yaml is not valid UTF-8"),
    ("a: 1\n---\nb: 2\n", "holds several documents"),
    ("a: [1\nb: 2", "given.yaml is not valid YAML at line 2"),
    ("", "given.yaml holds no recipe"),
    ("#" * (2 << 20), "given.yaml is larger than 1 MiB"),
]

DAMAGED = [
    ("generate -m damaged -i source.txt", "generation_config.json", {"num_beams": 10**9}, "generation_config.json of damaged is damaged: num_beams=1000000000 must be at most 1000"),
    ("generate -m damaged -i source.txt", "tokenizer_config.json", {"model_max_length": "x"}, "tokenizer_config.json of damaged is damaged: model_max_length='x' must be a number"),
    ("generate -m damaged -i source.txt", "config.json", {"frobnicate": 3}, "unknown field 'frobnicate'; the configuration was saved by newer or other code: update vanilla_transformer"),
    ("explain damaged", "config.json", {"frobnicate": 3}, "unknown field 'frobnicate'; the configuration was saved by newer or other code"),
    ("train recipe.yaml start_from=damaged", "config.json", {"frobnicate": 3}, "unknown field 'frobnicate'; the configuration was saved by newer or other code"),
    ("generate -m damaged -i source.txt", "config.json", "3", "config.json of damaged is damaged, as it holds a number and not an"),
    ("explain damaged", "config.json", "[]", "config.json of damaged is damaged, as it holds a list and not an object"),
    ("generate -m damaged -i source.txt", "config.json", "[]", "config.json of damaged is damaged, as it holds a list and not an object"),
    ("explain damaged", "config.json", "", "config.json of damaged is damaged, as it is not valid JSON (Expecting"),
    ("generate -m damaged -i source.txt", "config.json", "", "config.json of damaged is damaged, as it is not valid JSON (Expecting"),
    ("explain damaged", "config.json", "{", "config.json of damaged is damaged, as it is not valid JSON (Expecting"),
    ("generate -m damaged -i source.txt", "config.json", "{", "config.json of damaged is damaged, as it is not valid JSON (Expecting"),
    ("explain damaged", "config.json", "{}", "the config.json of damaged names no model_type, so transformers does"),
    ("generate -m damaged -i source.txt", "config.json", "{}", "the config.json of damaged names no model_type, so transformers does"),
    ("explain damaged", "config.json", None, "damaged holds no config.json"),
    ("generate -m damaged -i source.txt", "config.json", None, "damaged holds no config.json"),
    ("explain damaged", "config.json", {'dtype': 'float99'}, "the config.json of damaged has dtype='float99', which is not a type of"),
    ("generate -m damaged -i source.txt", "config.json", {'dtype': 'float99'}, "the config.json of damaged has dtype='float99', which is not a type of"),
    ("generate -m damaged -i source.txt", "config.json", {'hidden_size': 32}, "the weights in damaged do not fit its config.json:"),
    ("generate -m damaged -i source.txt", "config.json", {'vocab_size': 5}, "the weights in damaged do not fit its config.json:"),
    ("explain damaged", "config.json", {'model_type': 'foo'}, "the config.json of damaged names code of its own"),
    ("generate -m damaged -i source.txt", "config.json", {'model_type': 'foo'}, "the config.json of damaged names code of its own"),
    ("explain damaged", "config.json", {'hidden_size': 'x'}, "the config.json of damaged cannot be used: VanillaTransformerConfig:"),
    ("generate -m damaged -i source.txt", "config.json", {'hidden_size': 'x'}, "the config.json of damaged cannot be used: VanillaTransformerConfig:"),
    ("explain damaged", "config.json", {'hidden_size': -1}, "the config.json of damaged cannot be used: VanillaTransformerConfig:"),
    ("generate -m damaged -i source.txt", "config.json", {'hidden_size': -1}, "the config.json of damaged cannot be used: VanillaTransformerConfig:"),
    ("generate -m damaged -i source.txt", "config.json", {'num_hidden_layers': 3}, "the weights in damaged do not fit its config.json: model.encoder.layers"),
    ("explain damaged", "config.json", {'dropout': 'x'}, "the config.json of damaged cannot be used: VanillaTransformerConfig:"),
    ("generate -m damaged -i source.txt", "config.json", {'dropout': 'x'}, "the config.json of damaged cannot be used: VanillaTransformerConfig:"),
    ("explain damaged", "config.json", {'architecture': 'foo'}, "the config.json of damaged cannot be used: VanillaTransformerConfig:"),
    ("generate -m damaged -i source.txt", "config.json", {'architecture': 'foo'}, "the config.json of damaged cannot be used: VanillaTransformerConfig:"),
    ("generate -m damaged -i source.txt", "tokenizer_config.json", "[]", "tokenizer_config.json of damaged is damaged, as it holds a list and not"),
    ("inspect -m damaged red", "tokenizer_config.json", "[]", "tokenizer_config.json of damaged is damaged, as it holds a list and not"),
    ("generate -m damaged -i source.txt", "tokenizer_config.json", "{", "tokenizer_config.json of damaged is damaged, as it is not valid JSON"),
    ("inspect -m damaged red", "tokenizer_config.json", "{", "tokenizer_config.json of damaged is damaged, as it is not valid JSON"),
    ("generate -m damaged -i source.txt", "tokenizer_config.json", "3", "tokenizer_config.json of damaged is damaged, as it holds a number and"),
    ("inspect -m damaged red", "tokenizer_config.json", "3", "tokenizer_config.json of damaged is damaged, as it holds a number and"),
    ("generate -m damaged -i source.txt", "tokenizer.json", "{}", "tokenizer.json of damaged is damaged, as it has no model; copy it again."),
    ("inspect -m damaged red", "tokenizer.json", "{}", "tokenizer.json of damaged is damaged, as it has no model; copy it again."),
    ("generate -m damaged -i source.txt", "tokenizer.json", "[", "tokenizer.json of damaged is damaged, as it is not valid JSON"),
    ("inspect -m damaged red", "tokenizer.json", "[", "tokenizer.json of damaged is damaged, as it is not valid JSON"),
    ("generate -m damaged -i source.txt", "tokenizer.json", "3", "tokenizer.json of damaged is damaged, as it holds a number and not an"),
    ("inspect -m damaged red", "tokenizer.json", "3", "tokenizer.json of damaged is damaged, as it holds a number and not an"),
    ("generate -m damaged -i source.txt", "tokenizer.json", None, "the tokenizer of damaged is damaged (Couldn't instantiate the backend"),
    ("inspect -m damaged red", "tokenizer.json", None, "the tokenizer of damaged is damaged (Couldn't instantiate the backend"),
    ("generate -m damaged -i source.txt", "generation_config.json", {'num_beams': 'x'}, "the generation_config.json of damaged is damaged: num_beams='x' must be"),
    ("generate -m damaged -i source.txt", "generation_config.json", {'num_beams': 0}, "the generation_config.json of damaged is damaged: num_beams=0 must be a"),
    ("generate -m damaged -i source.txt", "generation_config.json", "no json", "generation_config.json of damaged is damaged, as it is not valid JSON"),
    ("generate -m damaged -i source.txt", "generation_config.json", "3", "generation_config.json of damaged is damaged, as it holds a number and"),
    ("generate -m damaged -i source.txt", "generation_config.json", {'max_length': -1}, "the generation_config.json of damaged is damaged: max_length=-1 must be"),
    ("generate -m damaged -i source.txt", "model.safetensors", "x", "the weights in damaged are damaged (Error while deserializing header:"),
    ("inspect -m damaged red", "model.safetensors", "x", "the weights in damaged are damaged (Error while deserializing header:"),
    ("generate -m damaged -i source.txt", "model.safetensors", "", "the weights in damaged are damaged (Error while deserializing header:"),
    ("inspect -m damaged red", "model.safetensors", "", "the weights in damaged are damaged (Error while deserializing header:"),
    ("generate -m damaged -i source.txt", "model.safetensors", None, "damaged holds no model.safetensors. Pickled weights (pytorch_model.bin)"),
    ("inspect -m damaged red", "model.safetensors", None, "damaged holds no model.safetensors. Pickled weights (pytorch_model.bin)"),
    ("average damaged -o avg", "model.safetensors", "x", "damaged holds no checkpoint-N folders"),
    ("convert damaged out2 --to-transformers", "model.safetensors", "x", "the weights in damaged are damaged (Error while deserializing header:"),
    ("average damaged damaged -o avg", "model.safetensors", "x", "damaged/model.safetensors is damaged (Error while deserializing header:"),
    ("average damaged -o avg", "model.safetensors", "", "damaged holds no checkpoint-N folders"),
    ("convert damaged out2 --to-transformers", "model.safetensors", "", "the weights in damaged are damaged (Error while deserializing header:"),
    ("average damaged damaged -o avg", "model.safetensors", "", "damaged/model.safetensors is damaged (Error while deserializing header:"),
    ("average damaged -o avg", "model.safetensors", None, "damaged holds no checkpoint-N folders"),
    ("push damaged me/x", "model.safetensors", None, "damaged"),
    ("convert damaged out2 --to-transformers", "model.safetensors", None, "damaged holds no model.safetensors. Pickled weights (pytorch_model.bin)"),
    ("average damaged damaged -o avg", "model.safetensors", None, "damaged holds no model.safetensors"),
    ("average damaged -o avg", "config.json", "3", "damaged holds no checkpoint-N folders"),
    ("convert damaged out2 --to-transformers", "config.json", "3", "config.json of damaged is damaged, as it holds a number and not an"),
    ("average damaged -o avg", "model.safetensors.index.json", "{}", "damaged holds no checkpoint-N folders"),
    ("average damaged -o avg", "model.safetensors.index.json", "[]", "damaged holds no checkpoint-N folders"),
    ("average damaged -o avg", "model.safetensors.index.json", "{\"weight_map\": {\"a\": \"../x.safetensors\"}}", "damaged holds no checkpoint-N folders"),
    ("explain damaged", "config.json", "3", "config.json"),
]

# fmt: on


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workspace")
    save_translator(folder / "model")
    tokenizer = word_tokenizer()
    tiny_model("decoder-only", vocab_size=280).save_pretrained(folder / "lm")
    tiny_model("encoder-only", vocab_size=280).save_pretrained(folder / "encoder")
    tiny_model("decoder-only", vocab_size=280).save_pretrained(folder / "notokenizer")
    for name in ("lm", "encoder"):
        tokenizer.save_pretrained(folder / name)
    for number in (1, 2):
        save_translator(folder / "run" / f"checkpoint-{number}", tokenizer)
        (folder / "run" / f"checkpoint-{number}" / "trainer_state.json").write_text('{"log_history": []}')
    (folder / "folder").mkdir()
    pairs = reversed_words(9, 6)
    for side, texts in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        (folder / f"{side}.txt").write_text("".join(f"{text}\n" for text in texts))
    (folder / "short.txt").write_text("one\n" * 8)
    (folder / "empty.txt").write_bytes(b"")
    (folder / "latin1.txt").write_bytes(b"good\ncaf\xe9\n")
    (folder / "mac.txt").write_bytes(b"one\rtwo\rthree\r")
    (folder / "cut.gz").write_bytes(gzip.compress(b"one\ntwo\n" * 1000)[:-20])
    values = recipe_values(folder / "data", "../out")
    values["output_dir"] = "out"
    write = (folder / "recipe.yaml").write_text
    write(yaml.safe_dump(values))
    (folder / "ablation.yaml").write_text(
        yaml.safe_dump({**values, "ablation": {"cells": {"post": {"model.dropout": 0.2}}}})
    )
    texts = {"path": "source.txt"}
    lm = {"task": "causal-lm", "output_dir": "out", "data": {"train": texts, "validation": texts}}
    (folder / "lm.yaml").write_text(
        yaml.safe_dump({**lm, "model": {"preset": "transformer-tiny", "architecture": "decoder-only"}})
    )
    rows = {}
    yield folder, rows
    if rows:
        slowest = max(rows, key=rows.get)
        print(f"\n{len(rows)} rows of bad input; slowest {rows[slowest]:.2f} s: {slowest}", file=sys.__stderr__)


def snapshot(folder):
    return {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.fixture
def refused(workspace, capsys, monkeypatch):
    """Runs a command that must be refused; gives its sentence."""
    folder, rows = workspace
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_of_nobody")
    monkeypatch.setattr("vanilla_transformer.runs.run.Run.train", None)  # a recipe that is not refused is not trained

    def run(command, name=None):
        before, start = snapshot(folder), time.process_time()
        with pytest.raises(SystemExit) as end:
            main(shlex.split(command))
        seconds = time.process_time() - start
        printed = capsys.readouterr()
        rows[name or command] = seconds
        lines = printed.err.splitlines()
        assert end.value.code == 2, printed.err or printed.out
        assert len(lines) == 1 and lines[0].startswith("error: ") and printed.out == "", printed.err
        assert "Traceback" not in lines[0] and len(lines[0]) < 600, lines[0]
        assert snapshot(folder) == before
        assert seconds < LONGEST
        return lines[0]

    return run


def assert_says(sentence, parts):
    position = 0
    for part in parts:
        found = sentence.lower().find(part.lower(), position)
        assert found >= 0, f"{part!r} is not in {sentence!r}"
        position = found + len(part)


@pytest.mark.parametrize(
    ("command", "parts"), [(row[0], row[1:]) for row in COMMANDS], ids=lambda value: str(value)[:80]
)
def test_commands(refused, command, parts):
    assert_says(refused(command), parts)


@pytest.mark.parametrize(
    ("overrides", "parts"), [(row[0], row[1:]) for row in RECIPES], ids=lambda value: str(value)[:80]
)
def test_fields_of_recipes(refused, overrides, parts):
    recipe = "lm.yaml" if overrides.startswith("lm: ") else "recipe.yaml"
    assert_says(refused(f"train {recipe} {overrides.removeprefix('lm: ')}"), parts)


@pytest.mark.parametrize(
    ("text", "parts"), [(row[0], row[1:]) for row in RECIPE_FILES], ids=lambda value: str(value)[:40]
)
def test_files_of_recipes(refused, workspace, text, parts):
    (workspace[0] / "given.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert_says(refused("train given.yaml", f"recipe {text[:40]!r}"), parts)


@pytest.mark.parametrize(
    ("command", "file", "content", "parts"),
    [(*row[:3], row[3:]) for row in DAMAGED],
    ids=lambda value: str(value)[:40],
)
def test_damaged_folders(refused, workspace, command, file, content, parts):
    """`content` is text, a list of fields to change in a JSON file, or None for no file."""
    damaged = workspace[0] / "damaged"
    shutil.copytree(workspace[0] / "model", damaged)
    try:
        path = damaged / file
        if content is None:
            path.unlink()
        elif isinstance(content, dict):
            values = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(json.dumps({**values, **content}))
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        assert_says(refused(command, f"{command} with {file}={str(content)[:30]}"), parts)
    finally:
        shutil.rmtree(damaged)
