"""`train.py`, `captioner train`: train a model from a recipe."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path

from captioner.cli import INTERRUPTED, run_command, show
from captioner.config import Config, instantiate, parser_for, with_source_roots


def main(argv: list[str] | None = None) -> int:
    parser = parser_for(
        Config,
        prog="captioner train",
        description="Train a captioning model. Every setting of a recipe is also an option.",
    )
    parser.add_argument("--config", action="config", help="Recipe, a YAML file.")
    parser.add_argument("--resume", action="store_true", help="Go on with the run in train.output.")
    recipes, options = _split_recipes(sys.argv[1:] if argv is None else argv)
    arguments = parser.parse_args([*recipes, *options])

    def command() -> int:
        config = instantiate(Config, parser, arguments)
        if config.data.sources is not None:
            recipe = instantiate(Config, parser, parser.parse_args(recipes))
            if config.data.root != recipe.data.root:
                data = with_source_roots(config.data, config.data.root)
                config = replace(config, data=replace(data, root=recipe.data.root))
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


def _split_recipes(argv: list[str]) -> tuple[list[str], list[str]]:
    """Recipes, and options, which win over recipes wherever they stand."""
    recipes, options = [], []
    words = iter(argv)
    for word in words:
        if word == "--config":
            recipes += [word, *itertools.islice(words, 1)]
        elif word.startswith("--config="):
            recipes.append(word)
        else:
            options.append(word)
    return recipes, options
