"""Command line: parse, build, call. Exit codes: 0 done, 1 some inputs failed, 2 nothing done."""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from captioner.cli.parsing import CommandParser
from captioner.errors import CaptionerError, error_summary
from captioner.log import logger, printable, visible

if TYPE_CHECKING:
    from captioner.captioner import Captioner
    from captioner.visualization import Caption

# The commands: the module with a function of the same name, `_` for `-`, and what it does.
COMMANDS = {
    "caption": ("caption", "write captions for photos and draw the attention to each word"),
    "batch": ("batch", "caption a whole collection, on one machine or a Ray cluster"),
    "score": ("evaluate", "read a caption that you bring and draw the attention to each word"),
    "train": ("train", "train a model from a recipe"),
    "finetune": ("train", "fine-tune a model with your own photos"),
    "check-data": ("check_data", "find mistakes in a data set before training on it"),
    "evaluate": ("evaluate", "score a model on a data set"),
    "compare": ("evaluate", "test whether two evaluations differ by more than chance"),
    "plot": ("train", "draw the curves of a run"),
    "serve": ("serve", "run a web page and a REST interface"),
    "average": ("models", "average models that were fine-tuned from the same one"),
    "calibrate": ("models", "fit the confidence of a model's captions"),
    "export": ("models", "copy a trained model into a small folder to share"),
    "doctor": ("doctor", "check the installation, and say what is missing"),
    "completion": ("doctor", "print a script that completes commands in your shell"),
}


def command_main(name: str) -> Callable[[Sequence[str]], int]:
    """Return the function of one of COMMANDS that takes its arguments and returns its exit code."""
    module: Any = importlib.import_module(f"captioner.cli.{COMMANDS[name][0]}")
    return getattr(module, name.replace("-", "_"))


def command(run: Callable[[CommandParser], int]) -> Callable[[Sequence[str]], int]:
    """Make a command of a function that adds options to a parser, parses, and does the work.

    Its docstring, or else that of its module, is the description in `--help`.
    """

    def main(words: Sequence[str]) -> int:
        description = run.__doc__ or sys.modules[run.__module__].__doc__
        parser = CommandParser(run.__name__.replace("_", "-"), description, words)
        return run_command(lambda: run(parser), parser.prog.removeprefix("captioner "))

    return main


def run_command(command: Callable[[], int], name: str) -> int:
    """Call a command by its name; a user's mistake becomes one sentence on stderr, exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal's encoding may lack letters of a caption.
        sys.stdout.reconfigure(errors="backslashreplace")
    started = time.perf_counter()
    try:
        code = command()
        logger.debug(f"{time.perf_counter() - started:.1f} s")
        return code
    except CaptionerError as error:
        for line in traceback.format_exception(error):
            logger.debug(line.rstrip())
        message = str(error)
    except ModuleNotFoundError as error:
        from captioner.cli.doctor import EXTRAS

        module = (error.name or "").partition(".")[0]
        packages = [each for each, (modules, _) in EXTRAS.items() if module in modules.split()]
        if not packages:
            raise
        message = f"{name} needs {module}, which is not installed: pip install '{packages[0]}'"
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # importing torch's takes seconds
            raise
        message = (
            f"{error_summary(error, part='line')} Make batches smaller (in training "
            "data.batch_size, with optim.accumulate for the same effect), or use --device cpu"
        )
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        return 1
    message = re.sub(r"\s*\n\s*", " ", message)  # one line
    print(f"error: {printable(message)}", file=sys.stderr)
    return 2


def show(line: object) -> None:
    """Print results at once, above the progress bar if there is one.

    Raises:
        BrokenPipeError: Nobody reads them, or there is no space for them, as stderr then says.
    """
    try:
        tqdm.write(visible(str(line)), file=sys.stdout)
        sys.stdout.flush()
    except OSError as error:
        # Otherwise the interpreter would fail again when it flushes the buffer at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            message = f"standard output cannot be written ({error.strerror}); free space there"
            print(f"error: {message}", file=sys.stderr)
        raise BrokenPipeError from None


def is_withheld(confidence: float | None, least: float | None) -> bool:
    """Return whether a caption's confidence is below the least that the user accepts."""
    return least is not None and confidence is not None and confidence < least


def caption_note(
    caption: Caption, *, with_total: bool = False, min_confidence: float | None = None
) -> str:
    """Return a caption with its figures, for people; below `min_confidence` it is withheld."""
    notes = []
    withheld = is_withheld(caption.confidence, min_confidence)
    if caption.confidence is not None:
        value, *threshold = caption.confidence_digits
        unsure = caption.is_unsure and not withheld
        below = f", below {threshold[0]}: unsure" if unsure else ""
        notes.append(f"confidence {value}{below}")
    if with_total:
        steps = len(caption.words) + (caption.end_log_prob is not None)
        total = caption.log_prob
        notes.append(f"log-probability {total:.2f}, {total / steps:.2f} a word")
    text = "no caption" if withheld else printable(caption.text)
    return f"{text} ({'; '.join(notes)})" if notes else text


def files_note(files: Sequence[Path]) -> str:
    """Return the first file of a photo and how many more there are, for the end of a line."""
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f" -> {printable(files[0])}{more}" if files else ""


def caption_content(
    caption: Caption, *, with_total: bool = False, min_confidence: float | None = None
) -> dict[str, Any]:
    """Return a caption for JSON, `with_total` its `log_prob`; one withheld has its confidence."""
    content = caption.to_dict()
    if with_total:
        content["log_prob"] = round(caption.log_prob, 6)
    if is_withheld(caption.confidence, min_confidence):
        content |= {key: None for key in content if not key.startswith("confidence")}
    return content


def load_captioner(model: str | Path, arguments: Namespace) -> Captioner:
    """Load a model, a bundled name or a folder, as the options of `add_device_options` say."""
    from captioner.captioner import Captioner

    captioner = Captioner.from_pretrained(
        model, device=arguments.device, precision=arguments.precision, engine=arguments.engine
    )
    dtype = str(captioner.dtype).removeprefix("torch.")
    logger.debug(f"model {model} on {captioner.device.type}, encoder in {dtype}")
    return captioner


def attention_options(arguments: Namespace, models: Sequence[Captioner]) -> list[dict[str, Any]]:
    """Return the arguments of hard attention for each model, none for those without it.

    Layers and heads that a model lacks are refused, and the arguments if no model takes them.
    """
    from captioner.visualization.caption import check_head

    for captioner in models:
        check_head(arguments.layer, arguments.head, *captioner.attention_heads)
    option = "--at-test" if arguments.at_test else "--paths" if arguments.paths else None
    if option and not any(captioner.has_hard_attention for captioner in models):
        raise CaptionerError(f"{option}: needs a model with hard attention, such as --model hard")
    options = {"at_test": arguments.at_test, "paths": arguments.paths}
    return [options if captioner.has_hard_attention else {} for captioner in models]
