"""Command line: parse, build, call. Exit codes: 0 done, 1 some inputs failed, 2 unusable."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from captioner.errors import CaptionerError

INTERRUPTED = 130  # what a shell reports for a process ended by Ctrl-C


def run_command(command: Callable[[], int]) -> int:
    """Call a command; a user's mistake becomes one sentence on stderr and exit code 2."""
    try:
        return command()
    except CaptionerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        return 1


def whole_number(text: str) -> int:
    """A command line value of 1 or more."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 up")
    return value


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which model, where it runs, and how wide it searches."""
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--model", default="soft", help="a bundled model (default: soft)")
    chosen.add_argument("--checkpoint", metavar="DIR", help="a model folder, or a run")
    parser.add_argument("--beam-size", type=whole_number, help="1 is greedy (default: the model's)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
