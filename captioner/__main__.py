"""`captioner COMMAND`: one program for all commands."""

from __future__ import annotations

import importlib
import sys

from captioner import __version__

COMMANDS = {
    "caption": "write captions for photos and draw where the model looked",
    "score": "read a caption that you bring and draw where the model looked",
    "train": "train a model from a recipe",
    "evaluate": "score a model on a data set",
    "compare": "tell whether two evaluations differ by more than chance",
    "plot": "draw a run's curves and how its attention grew",
    "serve": "a web page and a REST interface",
    "average": "make one model of several that were trained on from the same one",
    "calibrate": "fit the confidence of a model's captions",
    "export": "copy a trained model into a small folder to share",
}


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0] in COMMANDS:
        module = importlib.import_module(f"captioner.cli.{arguments[0]}")
        return int(module.main(arguments[1:]))
    if arguments and arguments[0] in ("--version", "-V"):
        print(f"captioner {__version__}")
        return 0
    listing = "\n".join(f"  {name:10}{what}" for name, what in COMMANDS.items())
    usage = (
        f"usage: captioner COMMAND [options]\n\n{listing}\n\ncaptioner COMMAND --help tells more"
    )
    if arguments and arguments[0] in ("--help", "-h"):
        print(usage)
        return 0
    wrong = f"error: there is no command '{arguments[0]}'\n\n" if arguments else ""
    print(f"{wrong}{usage}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
