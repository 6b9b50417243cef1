"""Command line: parse, build, call. Exit codes: 0 done, 1 some inputs failed, 2 unusable."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from captioner.errors import CaptionerError
from captioner.runtime.allocator import keep_freed_memory

if TYPE_CHECKING:
    from captioner.captioner import Captioner

INTERRUPTED = 130  # what a shell reports for a process ended by Ctrl-C


def run_command(command: Callable[[], int]) -> int:
    """Call a command; a user's mistake becomes one sentence on stderr and exit code 2."""
    keep_freed_memory()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The name of a photo need not be text. In JSON this is the escape that leads back to it.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return command()
    except CaptionerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's; to import it here takes seconds
            raise
        reason = str(error).partition("\n")[0]
        print(
            f"error: {reason} Make batches smaller (in training data.batch_size, with "
            "optim.accumulate for the same effect), or use --device cpu",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        return 1


def show(line: str) -> None:
    """Print a line of results at once, above the progress bar if there is one.

    Raises:
        CaptionerError: it cannot be written, as on a full disk.
    """
    try:
        tqdm.write(line, file=sys.stdout)
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise CaptionerError(
            f"the results cannot be written to standard output ({error.strerror}); free space or "
            "send them elsewhere"
        ) from None


def whole_number(text: str) -> int:
    """A command line value of 1 or more."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 up")
    return value


def add_model_options(
    parser: argparse.ArgumentParser, *, search: bool = True
) -> argparse._MutuallyExclusiveGroup:
    """Which model, where it runs, and how wide it searches; returns the choice of the model."""
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--model", default="soft", help="a bundled model (default: soft)")
    chosen.add_argument("--checkpoint", metavar="DIR", help="a model folder, or a run")
    if search:
        parser.add_argument(
            "--beam-size", type=whole_number, help="1 is greedy (default: the model's)"
        )
    add_device_options(parser)
    return chosen


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """Where the model runs, and how exactly."""
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--precision",
        choices=["float32", "bfloat16"],
        default="float32",
        help="the encoder's; bfloat16 is about twice as fast on CPUs that have it",
    )


def load_captioner(model: str | Path, arguments: argparse.Namespace) -> Captioner:
    """The model on the device of `add_device_options`."""
    from captioner.captioner import Captioner

    return Captioner.from_pretrained(model, device=arguments.device, precision=arguments.precision)


def chosen_model(arguments: argparse.Namespace) -> str | Path:
    """What `add_model_options` gave, for Captioner.from_pretrained: a name, or a folder's path."""
    return arguments.model if arguments.checkpoint is None else Path(arguments.checkpoint)
