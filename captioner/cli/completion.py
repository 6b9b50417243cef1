"""`captioner completion`: a script with which a shell completes commands and their options.

The options come from each command's `--help`, so they are complete by construction.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import captioner
from captioner.cli import COMMANDS, command_main, parsing, run_command, show
from captioner.config import shipped_recipes

_BUNDLED = Path(captioner.__file__).with_name("bundled")
_MODELS_OR_FILES = ("--from", "--compare")
SHELLS = ("bash", "zsh", "fish")

_BASH = """\
# captioner's commands and options. To use it in every new shell:
#   captioner completion bash > ~/.local/share/bash-completion/completions/captioner
_captioner() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        words="{commands} --help --version"
    else
        case "${{COMP_WORDS[1]}} $before" in
{values}
        esac
        if [ -z "$words" ]; then
            case $word in
            -*)
                case ${{COMP_WORDS[1]}} in
{options}
                esac ;;
            esac
        fi
    fi
    if [ -n "$words" ]; then COMPREPLY=($(compgen -W "$words" -- "$word")); fi
}}
complete -o default -F _captioner captioner
"""
# A zsh without its user's configuration has not started its completion system.
_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
autoload -U +X bashcompinit && bashcompinit
"""


def main(argv: list[str] | None = None) -> int:
    parser = parsing.CommandParser(
        prog="captioner completion",
        description="Print a script with which your shell completes captioner's commands and "
        'options. Try it in bash or zsh with: eval "$(captioner completion bash)"; in fish with: '
        "captioner completion fish | source. Exit code: 0 printed, 2 no such shell.",
    )
    parser.add_argument("shell", choices=SHELLS, help="bash, zsh or fish")
    shell = parser.parse_args(argv).shell

    def command() -> int:
        show(script(shell))
        return 0

    return run_command(command)


def script(shell: str) -> str:
    """Return the completion script of one of SHELLS."""
    options = {name: options_of(name) for name in COMMANDS}
    if shell == "fish":
        return _fish(options)
    text = _BASH.format(
        commands=" ".join(COMMANDS),
        values="\n".join(
            f'        "{name} {option}") words="{" ".join(choices)}" ;;'
            for name, found in options.items()
            for option, choices in found.items()
            if choices
        ),
        options="\n".join(
            f'                {name}) words="{" ".join(found)}" ;;'
            for name, found in options.items()
        ),
    )
    return _ZSH + text if shell == "zsh" else text


def options_of(command: str) -> dict[str, list[str]]:
    """Return a command's options, and the choices of those that take one of a few words."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        command_main(command)(["--help"])
    listing = text.getvalue().partition("\n\n")[2]  # without the usage, which repeats options
    found: dict[str, list[str]] = {}
    for line in listing.splitlines():
        names = re.match(r"\s{1,4}(-[^ ].*?)(?:\s{2,}.*)?$", line)
        if not names:
            continue
        choices = re.search(r"\{([^}]*)\}", names[1])
        for option in re.findall(r"(?<![\w-])--[a-z][\w.+-]*", names[1]):
            found[option] = choices[1].split(",") if choices else []
    models = sorted(path.parent.name for path in _BUNDLED.glob("*/manifest.json"))
    named = {"--model": models, **dict.fromkeys(_MODELS_OR_FILES, models)}
    named["--config"] = list(shipped_recipes())
    for option in named.keys() & found.keys():
        found[option] = found[option] or named[option]
    return found


def _fish(options: dict[str, dict[str, list[str]]]) -> str:
    """Return the completion script for fish, from the options and choices of each command."""
    lines = ["# captioner's commands and options"]
    for name, purpose in COMMANDS.items():
        quoted = purpose.replace("'", r"\'")
        lines.append(f"complete -c captioner -n __fish_use_subcommand -a {name} -d '{quoted}'")
    for name, found in options.items():
        for option, choices in found.items():
            files_too = option in (*_MODELS_OR_FILES, "--config")
            values = f" {'-r' if files_too else '-x'} -a '{' '.join(choices)}'" if choices else ""
            lines.append(
                f"complete -c captioner -n '__fish_seen_subcommand_from {name}' "
                f"-l {option.removeprefix('--')}{values}"
            )
    return "\n".join(lines)
