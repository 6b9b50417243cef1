"""`train.py`, `captioner train`: train a model from a recipe."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from captioner.cli import INTERRUPTED, run_command, show
from captioner.config import Config, one_line, parser_for, refuse_null
from captioner.errors import ConfigError


def main(argv: list[str] | None = None) -> int:
    parser = parser_for(
        Config,
        prog="captioner train",
        description="Train a captioning model. Every setting of a recipe is also an option.",
    )
    parser.add_argument("--config", action="config", help="Recipe, a YAML file.")
    parser.add_argument("--resume", action="store_true", help="Go on with the run in train.output.")
    arguments = parser.parse_args(_recipes_first(sys.argv[1:] if argv is None else argv))

    def command() -> int:
        try:
            sections = parser.instantiate(arguments)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"a section of the recipe holds no settings ({one_line(str(error))}); write its "
                "settings below it, or leave it out"
            ) from None
        config = Config(
            **{name: value for name, value in vars(sections).items() if name in _sections()}
        )
        refuse_null(config)
        from captioner.training.run import holds_a_run, train

        try:
            best = train(config, resume=arguments.resume)
        except KeyboardInterrupt:
            run = Path(config.train.output)
            print(
                f"interrupted; go on with the same command and --resume ({run})"
                if holds_a_run(run)
                else f"interrupted before {run} had a checkpoint; start the same command again",
                file=sys.stderr,
            )
            return INTERRUPTED
        show(str(best))
        return 0

    return run_command(command)


def _recipes_first(argv: list[str]) -> list[str]:
    """Options win over recipes, wherever they stand; jsonargparse would let the later one win."""
    recipes, options = [], []
    words = iter(argv)
    for word in words:
        if word == "--config":
            recipes += [word, *itertools.islice(words, 1)]
        elif word.startswith("--config="):
            recipes.append(word)
        else:
            options.append(word)
    return recipes + options


def _sections() -> set[str]:
    return set(Config.__dataclass_fields__)
