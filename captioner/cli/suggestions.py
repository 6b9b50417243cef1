"""Commands and options that there are not, and the ones that were probably meant."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path

from captioner.log import printable

_PHOTOS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".heic")
_PLACE = "PLACE"  # stands for a command's argument without an option, such as PHOTO

# Names that other programs use, and the last part of ours, the likeliest first.
_SYNONYMS = {
    (_PLACE,): "f i image images img img-path image-path input inputs photo photos file files path "
    "filename src source url",
    (_PLACE, "root"): "data data-dir data-folder data-path data-root dataset dataset-dir dir "
    "image-dir image-folder image-root images-dir img-dir train-data train-dir",
    ("format",): "data-name dataset-name dataset-type",
    ("file",): "annotation annotations annotation-file ann-file captions captions-file json table",
    ("split",): "subset",
    ("output",): "o d out out-dir outdir output-dir output-folder output-path result results "
    "results-dir save save-dir save-path save-to run-dir logdir log-dir",
    ("model", "checkpoint", "start_from", "from"): "m model-name",
    ("checkpoint", "start_from", "from"): "ckpt ckpt-path checkpoint-path load load-from model-dir "
    "model-path pretrained pretrained-model weights vocab vocab-file vocabulary word-map wordmap",
    ("config",): "c cfg cfg-path config-file config-path recipe yaml",
    ("resume",): "continue continue-training resume-from resume-from-checkpoint",
    ("beam_size",): "b k beam beams beam-width beamsize n-beams num-beams",
    ("num_captions",): "n n-captions num-return-sequences count top-n n-best nbest",
    ("max_words",): "max-caption-length max-len max-length max-new-tokens max-seq-len max-tokens "
    "seq-length length",
    ("sample",): "do-sample sampling nucleus use-nucleus-sampling random",
    ("top_p",): "p nucleus-p",
    ("length_penalty",): "alpha length-norm",
    ("epochs",): "e epoch max-epochs max-epoch n-epochs nepochs num-epochs num-train-epochs",
    ("lr",): "base-lr decoder-lr learning-rate learningrate",
    ("encoder_lr",): "fine-tune-encoder lr-encoder cnn-lr",
    ("batch_size",): "batch batchsize bs per-device-train-batch-size train-batch-size",
    ("clip_norm",): "clip grad-clip max-grad-norm gradient-clip",
    ("workers",): "j jobs n-workers num-workers processes threads",
    ("seed",): "manual-seed random-seed",
    ("device",): "cpu cuda gpu gpus gpu-id device-id no-cuda use-gpu",
    ("precision",): "amp bf16 dtype fp16 half mixed-precision",
    ("backbone",): "arch architecture cnn encoder-name network",
    ("hidden_dim",): "decoder-dim hidden-dim hidden-size rnn-size lstm-size",
    ("embed_dim",): "emb-dim embed-size embedding-dim embedding-size word-dim",
    ("overwrite",): "force replace y yes",
    ("min_words",): "min-len min-length min-tokens",
    ("temperature",): "temp",
    ("accumulate",): "gradient-accumulation grad-accum gradient-accumulation-steps accum",
    ("weight_decay",): "wd",
    ("dim",): "attention-dim att-dim att-size",
    ("select",): "attention attention-type hard soft",
    ("patience",): "early-stopping early-stop",
    ("checkpoint_every",): "save-steps save-every save-freq",
    ("log_every",): "logging-steps log-steps print-freq print-every",
    ("style",): "cmap colormap overlay",
    ("words",): "per-word",
    ("recursive",): "recurse subfolders",
    ("prefix",): "trigger-word prepend",
    ("suffix",): "append",
    ("write",): "write-txt txt xmp sidecar caption-extension",
    ("json",): "as-json json-output",
    ("host",): "address bind ip",
    ("allow_urls",): "urls allow-url download",
    ("save",): "formats visualize viz vis",
}
_COMMANDS = {
    "caption": "describe generate infer inference predict run demo image img photo file",
    "train": "fit learn",
    "finetune": "fine-tune finetuning tune adapt",
    "evaluate": "eval test val validate metrics benchmark",
    "serve": "server web webui gui ui api app",
    "check-data": "check validate-data lint",
    "batch": "bulk collection folder",
    "plot": "curves visualize",
    "export": "convert onnx",
}
_MEANINGS = {name: meanings for meanings, names in _SYNONYMS.items() for name in names.split()}
# Commands and options of earlier versions, and what to do instead.
_REMOVED = {
    "shards": "train from the folder itself; tar files that it wrote are read from a disk",
    "caption --in-place": "--write html writes a copy of the page; move it over the page",
    "caption --max-length": "alternative texts have at most 125 characters",
    "doctor --json": "the lines begin with ok, -- or !!",
    "doctor --measure": "time captioner caption with --precision bfloat16 and without",
    "evaluate --captions": "results.json has them; captioner batch captions all photos",
    "evaluate --regions": "--objects takes masks, and boxes where there are none",
    "evaluate --removal": "--faithfulness always deletes cells from the grid",
    "serve --workers": "run several servers at ports of their own, behind nginx",
}


def unknown_command(word: str, commands: Sequence[str]) -> str:
    """Return a sentence on a word in the place of a command, with what was probably meant.

    >>> unknown_command("eval", ["caption", "evaluate"])
    "there is no command 'eval' (did you mean: captioner evaluate)"
    """
    if instead := _REMOVED.get(word):
        return f"captioner {word} is gone: {instead}"
    name = _plain(word)
    meant = [command for command, names in _COMMANDS.items() if name in names.split()]
    meant += get_close_matches(name, commands, n=1)
    if os.path.exists(word) or "://" in word or Path(word).suffix.lower() in _PHOTOS:
        meant = [f"caption {word}"]
    hint = f" (did you mean: captioner {meant[0]})" if meant else ""
    return printable(f"there is no command '{word}'{hint}")


def unknown_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> str | None:
    """Return a sentence on the words that are options of other programs, None without any.

    Args:
        parser: The command's parser. Beginnings of options are left to it.
        words: The command's arguments.
    """
    options = [option for action in parser._actions for option in action.option_strings]
    # jsonargparse has an option for each section, too: --data, where --data.root is meant.
    sections = {option.partition(".")[0] for option in options if "." in option}
    known = [option for option in options if option not in sections]
    sentences = []
    for word in takewhile(lambda word: word != "--", words):
        option = word.partition("=")[0]
        is_short = re.match("-[A-Za-z]", option)
        is_known = option.removesuffix("+") in known or (is_short and option[:2] in known)
        is_start = parser.allow_abbrev and any(each.startswith(option) for each in known)
        if is_known or is_start or not (is_short or option.startswith("--")):
            continue
        if instead := _REMOVED.get(f"{parser.prog.removeprefix('captioner ')} {option}"):
            sentences.append(f"{option} is gone: {instead}")
        else:
            sentences.append(f"there is no option {option}{_meant(parser, option, known)}")
    return "; ".join(sentences) or None


def _meant(parser: argparse.ArgumentParser, option: str, known: list[str]) -> str:
    """Return what follows the name of an unknown option: what was probably meant."""
    name = _plain(option).rpartition(".")[2]
    by_name: dict[str, list[str]] = {}  # options by their last part: epochs is of --train.epochs
    for each in known:
        by_name.setdefault(_plain(each).rpartition(".")[2], []).append(each)
    places = [str(a.metavar or a.dest) for a in parser._actions if not a.option_strings]
    for meaning in (name, *_MEANINGS.get(name, ())):
        if meaning == _PLACE and places:
            return f" (give {places[0]} alone: {parser.prog} {places[0]})"
        if found := by_name.get(_plain(meaning)):
            return f" (did you mean {' or '.join(found[:3])}?)"
    # A synonym's meaning is known: this command has no such option.
    near = [] if name in _MEANINGS else get_close_matches(name, by_name, n=1, cutoff=0.7)
    return f" (did you mean {by_name[near[0]][-1]}?)" if near else ""


def _plain(word: str) -> str:
    return word.strip("-").replace("_", "-").casefold()
