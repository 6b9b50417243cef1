"""What a word that is no command or option probably means: typing errors, and others' names."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import takewhile

from captioner.log import printable

_PLACE = "PLACE"  # stands for a command's argument without an option, such as PHOTO

# Names that other programs use, by the last part of ours, where more than a few letters differ.
_SYNONYMS = {
    "from": "m model checkpoint ckpt load model-path pretrained start-from weights",
    _PLACE: "i img image image-path input photo file path data dataset data-dir data-path root "
    "sources run model checkpoint",
    "root": "data dataset data-dir data-folder data-path image-dir img-dir",
    "format": "data-name dataset-name dataset-type",
    "file": "annotations annotation-file captions captions-file",
    "output": "o out out-dir output-folder results save-dir save-path",
    "checkpoint": "m ckpt load model-dir model-path pretrained weights",
    "config": "c cfg recipe yaml",
    "resume": "continue resume-from-checkpoint",
    "beam-size": "b k beam num-beams",
    "num-captions": "n num-return-sequences nbest",
    "max-words": "max-len max-length max-new-tokens max-tokens",
    "min-words": "min-len min-length min-tokens",
    "sample": "nucleus use-nucleus-sampling",
    "length-penalty": "alpha",
    "epochs": "num-epochs num-train-epochs",
    "lr": "decoder-lr learning-rate",
    "batch-size": "batch bs per-device-train-batch-size",
    "accumulate": "gradient-accumulation-steps",
    "clip-norm": "grad-clip max-grad-norm",
    "workers": "j jobs threads",
    "seed": "manual-seed random-seed",
    "device": "cpu cuda gpu gpus gpu-id no-cuda",
    "precision": "amp bf16 dtype fp16 half",
    "backbone": "arch architecture cnn",
    "hidden-dim": "decoder-dim rnn-size",
    "embed-dim": "embedding-size word-dim",
    "dim": "attention-dim",
    "overwrite": "force y yes",
}
_COMMANDS = {
    "caption": "describe generate infer inference predict run demo image",
    "finetune": "fine-tune tune",
    "evaluate": "eval test val validate metrics",
    "serve": "web webui gui ui api app",
    "export": "convert onnx",
}
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
    if os.path.exists(word) or "://" in word:
        meant = [f"caption {word}"]
    hint = f" (did you mean: captioner {meant[0]})" if meant else ""
    return printable(f"there is no command '{word}'{hint}")


def unknown_option(parser: argparse.ArgumentParser, words: Sequence[str]) -> str | None:
    """Return a sentence on the first word that is no option in a command's help, None without."""
    actions = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
    known = [option for action in actions for option in action.option_strings]
    for word in takewhile(lambda word: word != "--", words):
        option = word.partition("=")[0]
        is_short = re.match("-[A-Za-z]", option)
        is_known = option.removesuffix("+") in known or (is_short and option[:2] in known)
        is_start = parser.allow_abbrev and any(each.startswith(option) for each in known)
        if is_known or is_start or not (is_short or option.startswith("--")):
            continue
        if instead := _REMOVED.get(f"{parser.prog.removeprefix('captioner ')} {option}"):
            return f"{option} is gone: {instead}"
        return f"there is no option {option}{_meant(parser, option, known)}"
    return None


def _meant(parser: argparse.ArgumentParser, option: str, known: list[str]) -> str:
    """Return what follows the name of an unknown option: what was probably meant."""
    name = _plain(option).rpartition(".")[2]
    # Options by their last part: epochs is of --train.epochs, output of --output or --train.output.
    known = sorted(known, key=lambda each: ("." in each, not each.startswith("--train.")))
    by_name = {_plain(each).rpartition(".")[2]: each for each in reversed(known)}
    meanings = [ours for ours, names in _SYNONYMS.items() if name in names.split()]
    places = [str(a.metavar or a.dest).upper() for a in parser._actions if not a.option_strings]
    # A synonym's meaning is known: if it is not here, this command has no such option.
    for meaning in (name, *(meanings or get_close_matches(name, by_name, n=1, cutoff=0.7))):
        if meaning == _PLACE and places:
            return f" (give {places[0]} alone: {parser.prog} {places[0]})"
        if meaning in by_name:
            return f" (did you mean {by_name[meaning]}?)"
    return ""


def _plain(word: str) -> str:
    return word.strip("-").replace("_", "-").casefold()
