"""Print a script with which your shell completes captioner's commands and options.

Try it in bash or zsh with: eval "$(captioner completion bash)"; in fish with: captioner completion
fish | source.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from typing import Any

from captioner.cli import COMMANDS, command_main, parsing, run_command, show

SHELLS = ("bash", "zsh", "fish")
# A zsh without its user's configuration has not started its completion system.
_ZSH = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }"


def main(argv: list[str] | None = None) -> int:
    parser = parsing.CommandParser("completion", __doc__)
    parser.add_argument("shell", choices=SHELLS, help="bash, zsh or fish")
    arguments = parser.parse_args(argv)
    return run_command(lambda: _run(arguments.shell))


def _run(shell: str) -> int:
    show(script(shell))
    return 0


def script(shell: str) -> str:
    """Return the completion script of one of SHELLS."""
    import shtab

    root = argparse.ArgumentParser(prog="captioner")
    root.add_argument("--version", action="store_true")
    commands = root.add_subparsers()
    for name, purpose in COMMANDS.items():
        parser = commands.add_parser(name, help=purpose, add_help=False)
        for option, choices in options_of(name).items():
            if choices is None:
                parser.add_argument(option, action="store_true")
                continue
            action: Any = parser.add_argument(option, choices=choices or None)
            if not choices:
                action.complete = shtab.FILE
        files: Any = parser.add_argument("files", nargs="*")
        files.complete = shtab.FILE
    text: str = shtab.complete(root, shell, preamble=_ZSH if shell == "zsh" else "")
    return text


def options_of(command: str) -> dict[str, list[str] | None]:
    """Return a command's options with the values to choose from, and None for those without one."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        command_main(command)(["--help"])
    listing = text.getvalue().partition("\noptions:\n")[2]  # without the usage
    found: dict[str, list[str] | None] = {}
    for names in re.findall(r"^ {1,4}(-\S.*?)(?: {2,}.*)?$", listing, re.MULTILINE):
        choices = re.search(r"\{([^}]*)\}", names)
        takes_value = re.search(r"--\S+ \S", names)
        for option in re.findall(r"(?<!\S)--[a-z][\w.+-]*", names):
            found[option] = (choices[1].split(",") if choices else []) if takes_value else None
    return found
