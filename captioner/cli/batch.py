"""Caption a whole collection into Parquet files, on this machine or a Ray cluster.

The same command again goes on where a run ended, however it ended.
Exit code: 0 all done, 1 some photos failed, 2 nothing could be done.
"""

from __future__ import annotations

import logging
from functools import partial

from captioner.cli import command, parsing, show
from captioner.errors import DataError
from captioner.log import logger, printable

SHARD_SIZE = 1000


@command
def batch(parser: parsing.CommandParser) -> int:
    add = parser.add_argument
    help_ = "a folder, a list or table of photos (text, CSV, TSV, JSON, Parquet), or tar files"
    add("input", metavar="INPUT", help=f"{help_}; also a URL or a pattern in quotes")
    help_ = "folder or URL for parts/*.parquet and summary.json"
    add("--output", type=parsing.folder_name, required=True, metavar="DIR", help=help_)
    parsing.add_model_options(parser, engine="--model-engine")  # --engine distributes the work
    parsing.add_search_options(parser, min_words=True)
    add("--image-column", metavar="NAME", help="a table's column of photos")
    add("--maps", action="store_true", help="also write the attention maps, as float16")
    add = parser.add_argument_group("distribution of the work").add_argument
    help_ = "processes on this machine, or Ray (default: local)"
    add("--engine", choices=["local", "ray"], default="local", help=help_)
    help_ = "of a Ray cluster, such as auto or host:6379 (default: Ray on this machine)"
    add("--ray-address", metavar="ADDRESS", help=help_)
    help_ = "processes with a model each (default: one for each core or GPU that is free)"
    add("--workers", type=parsing.number_from(1, 100_000, int), metavar="N", help=help_)
    help_ = "photos that the model sees at once (default: 16)"
    add("--batch-size", type=parsing.number_from(1, 4096, int), default=16, metavar="N", help=help_)
    help_ = f"photos in a part of the output; each tar file is a part (default: {SHARD_SIZE})"
    add("--shard-size", type=parsing.whole_number, default=SHARD_SIZE, metavar="N", help=help_)
    add("--retry-errors", action="store_true", help="do parts again that have photos that failed")
    arguments = parser.parse()
    if arguments.ray_address and arguments.engine != "ray":
        parser.error("argument --ray-address: needs --engine ray")

    from captioner.batch.run import Job, run_batch, run_local, run_ray

    job = Job(
        output=arguments.output,
        model=parsing.chosen_model(arguments),
        device=arguments.device,
        precision=arguments.precision,
        engine=arguments.model_engine,
        search=parsing.given(arguments, "beam_size", "max_words", "min_words", "length_penalty"),
        batch_size=arguments.batch_size,
        maps=arguments.maps,
    )
    engine = partial(run_local, workers=arguments.workers)
    if arguments.engine == "ray":
        engine = partial(run_ray, workers=arguments.workers, address=arguments.ray_address)
    totals = run_batch(
        arguments.input,
        job,
        engine,
        shard_size=arguments.shard_size,
        image_column=arguments.image_column,
        retry_errors=arguments.retry_errors,
    )
    if logger.isEnabledFor(logging.INFO):
        show(f"{totals.photos} photos, {totals.errors} failed: {printable(arguments.output)}/parts")
    if not totals.photos:  # of tar files, that shows only when they are read
        raise DataError(f"{arguments.input}: holds no photos")
    if not totals.errors:
        return 0
    return 1 if totals.errors < totals.photos else 2
