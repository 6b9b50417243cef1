"""`captioner COMMAND`: one program for all commands."""

from __future__ import annotations

import os
import signal
import sys

EXAMPLES = (
    "captioner caption photo.jpg --output out",
    "captioner finetune photos.csv --from soft --output my-model",
)


def main(argv: list[str] | None = None) -> int:
    """Run the command that the arguments name and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    # torch reads this when it is imported. When a training process is lost, torch's C++ code would
    # log dozens of stack frames; captioner's own message says what happened.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    # How often PyTorch's OpenMP threads poll for work before they sleep. With the default number a
    # training step takes 2.5 times as long on cores that other programs use too; with this number
    # it takes no longer on free cores.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        return _run(arguments)
    except KeyboardInterrupt:  # before the command itself handles it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        print("interrupted", file=sys.stderr)
        return 130


def _run(arguments: list[str]) -> int:
    # Imported here, so that `main` handles Ctrl-C during the imports too.
    from captioner import __version__
    from captioner.cli import COMMANDS, command_main
    from captioner.log import printable

    if arguments and arguments[0] in COMMANDS:
        return command_main(arguments[0])(arguments[1:])
    if arguments and arguments[0] in ("--version", "-V"):
        print(f"captioner {__version__}")
        return 0
    listing = "\n".join(f"  {name:11}{purpose}" for name, purpose in COMMANDS.items())
    examples = "\n".join(f"  {example}" for example in EXAMPLES)
    usage = (
        "usage: captioner COMMAND [options]   (captioner COMMAND --help shows them)\n\n"
        f"{listing}\n\nexamples:\n{examples}"
    )
    if arguments and arguments[0] in ("--help", "-h"):
        print(usage)
        return 0
    wrong = ""
    if arguments:
        from captioner.cli.suggestions import REMOVED_COMMANDS, meant_command

        if instead := REMOVED_COMMANDS.get(arguments[0]):
            print(f"error: captioner {arguments[0]} is gone: {instead}", file=sys.stderr)
            return 2
        meant = meant_command(arguments[0], list(COMMANDS))
        meant = f" (did you mean: captioner {printable(meant)})" if meant else ""
        wrong = f"error: there is no command '{printable(arguments[0])}'{meant}\n\n"
    print(f"{wrong}{usage}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
