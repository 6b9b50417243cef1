"""Fine-tune a model with your own captioned photos.

Give a table with the columns image, caption and, if you have them, split (train, val), or any other
layout that docs/data.md lists. The model keeps its architecture and its words, and gets the words
of your captions in addition. Without splits, some photos are held out for validation. Every setting
of a recipe is also an option.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from captioner.cli import parsing, run_command
from captioner.cli.train import parse_options, recipe_parser, split_options, train_and_show
from captioner.config import ModelConfig
from captioner.config.recipes import read_recipe
from captioner.config.settings import Config
from captioner.errors import CaptionerError, ConfigError

RECIPE = "finetune"
EXAMPLE = "captioner finetune photos.csv --from soft --output my-model"
START = "soft"  # the bundled model to begin with


def main(argv: list[str] | None = None) -> int:
    return run_command(lambda: train_and_show(*parse_settings(argv), validate_start=True))


def parse_settings(argv: list[str] | None) -> tuple[Config, bool]:
    """Return the settings of a run, and whether to resume it.

    The recipe is laid over the settings of the model to start from; options win over both.
    """
    from captioner.checkpoint import load_config, model_folder, verify

    (recipes, starts), options = split_options(argv, "--config", "--from")
    parser = recipe_parser(
        "DATA --output DIR [--from MODEL]",
        recipe="recipe, as of captioner train",
        default=RECIPE,
        prog="captioner finetune",
        description=__doc__,
        epilog=f"example: {EXAMPLE}",
    )
    add = parser.add_argument
    add("table", metavar="DATA", nargs="?", help="folder of the data set, or its captions file")
    add("--from", metavar="MODEL", default=START, help="bundled model, model folder or run")
    add("--output", type=parsing.folder_name, metavar="DIR", help="run folder to make")
    start = (starts or [START])[-1]
    try:
        folder = model_folder(start)
        verify(folder)
        settings = load_config(folder)
    except CaptionerError:
        if not {"--help", "-h"} & set(options):
            raise
        settings = ModelConfig()
    recipe = read_recipe(*(recipes or [RECIPE]), base=settings)
    config, arguments = parse_options(parser, recipe, options)
    if not (arguments.table and arguments.output):
        raise ConfigError("give the captioned photos and a folder to make: " + EXAMPLE)
    cache = config.data.cache
    if cache and cache == recipe.data.cache:  # it may hold that of another table
        cache = str(Path(arguments.output) / "cache")
    config = replace(
        config,
        data=replace(config.data, root=arguments.table, sources=None, cache=cache),
        train=replace(config.train, start_from=start, output=arguments.output),
    )
    return config, arguments.resume
