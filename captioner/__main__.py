"""`captioner COMMAND`: one program for all commands."""

from __future__ import annotations

import os
import signal
import sys

EXAMPLES = """
examples:
  captioner caption photo.jpg --output out
  captioner finetune photos.csv --from soft --output my-model"""


def main(argv: list[str] | None = None) -> int:
    """Run the command that the arguments name and return its exit code."""
    # torch reads this when it is imported. When a training process is lost, torch's C++ code would
    # log dozens of stack frames; captioner's own message says what happened.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    # How often PyTorch's OpenMP threads poll for work before they sleep. With the default number a
    # training step takes 2.5 times as long on cores that other programs use too; with this number
    # it takes no longer on free cores.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:  # a second one, while files are closed, ends without a word
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        print("interrupted", file=sys.stderr)
        return 130


def _run(arguments: list[str]) -> int:
    # Imported here, so that `main` handles Ctrl-C during the imports too.
    from captioner import __version__
    from captioner.cli import COMMANDS, command_main

    name = arguments[0] if arguments else None
    if name in COMMANDS:
        return command_main(name)(arguments[1:])
    if name in ("--version", "-V"):
        print(f"captioner {__version__}")
        return 0
    listing = [f"  {command:11}{purpose}" for command, (_, purpose) in COMMANDS.items()]
    head = "usage: captioner COMMAND [options]   (captioner COMMAND --help shows them)\n"
    usage = "\n".join([head, *listing, EXAMPLES])
    if name in ("--help", "-h", "help"):
        print(usage)
        return 0
    if name is not None:
        from captioner.cli.suggestions import unknown_command

        usage = f"error: {unknown_command(name, list(COMMANDS))} (captioner --help shows all)"
    print(usage, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
