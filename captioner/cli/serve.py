"""`captioner serve`: a web page and a REST interface."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from captioner.cli import load_captioner, parsing, run_command, show
from captioner.errors import CaptionerError, needs_extra

if TYPE_CHECKING:
    from fastapi import FastAPI

    from captioner.captioner import Captioner

TOKEN_VARIABLE = "CAPTIONER_TOKEN"
_STARTUP_S = 120  # for a replica to load its models, on a machine that is busy


def main(argv: list[str] | None = None) -> int:
    return run_command(lambda: _run(_parser().parse_args(argv)))


def _parser() -> argparse.ArgumentParser:
    parser = parsing.CommandParser(
        prog="captioner serve",
        description="A web page and a REST interface on this machine. Ctrl-C or SIGTERM: answer "
        "the requests that have arrived, then end. Exit code: 0 ended so, 2 could not start.",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port",
        type=parsing.whole_number_from(0, 65535),
        default=8000,
        help="0 takes a free one (default: 8000)",
    )
    parser.add_argument(
        "--token",
        default=os.environ.get(TOKEN_VARIABLE) or None,
        help="what requests must bring; required where other machines reach the host. Better "
        f"given in the environment, as {TOKEN_VARIABLE}, where no list of processes shows it",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        type=_origin,
        metavar="ORIGIN",
        help="a web site whose pages may use the interface, as in https://example.org; may be "
        "given several times (default: only the server's own page)",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="a bundled model; may be given several times, the first is the default (default: all "
        "of them, soft first)",
    )
    parser.add_argument(
        "--checkpoint",
        action="append",
        default=[],
        metavar="DIR",
        help="a model folder, or a run; may be given several times",
    )
    parsing.add_device_options(parser)
    parser.add_argument(
        "--workers",
        type=parsing.whole_number_from(1, 64),
        default=1,
        metavar="N",
        help="replicas of the server behind the one port, each a process with the models and its "
        "share of the cores; one that dies is replaced (default: 1)",
    )
    parser.add_argument(
        "--max-requests",
        type=parsing.whole_number,
        default=128,
        help="requests processed at once; more are refused with 503 (default: 128)",
    )
    parser.add_argument(
        "--max-megabytes", type=parsing.whole_number, default=20, help="of a request (default: 20)"
    )
    parser.add_argument(
        "--max-megapixels", type=parsing.whole_number, default=50, help="of a photo (default: 50)"
    )
    parser.add_argument(
        "--allow-urls",
        action="store_true",
        help="requests may name photos by their addresses, which the server fetches, but not from "
        "private networks",
    )
    parser.add_argument(
        "--deadline",
        type=parsing.whole_number,
        default=30,
        metavar="S",
        help="seconds for an upload to arrive, and again for its answer (default: 30)",
    )
    return parser


def _origin(text: str) -> str:
    """Parse the origin of a web site, such as https://example.org."""
    parts = urlsplit(text)
    if not parts.scheme or not parts.netloc or text != f"{parts.scheme}://{parts.netloc}":
        raise argparse.ArgumentTypeError(f"'{text}' is no origin, such as https://example.org")
    return text.lower()


def _run(arguments: argparse.Namespace) -> int:
    with needs_extra("serve", "serve"):
        import uvicorn
        from uvicorn.supervisors import Multiprocess

        from captioner.serving import app  # noqa: F401
        from captioner.serving.security import is_loopback

    if not is_loopback(arguments.host) and not arguments.token:
        raise CaptionerError(
            f"other machines can reach {arguments.host or 'every address'}, so give a token with "
            f"--token or in {TOKEN_VARIABLE}, or listen at 127.0.0.1"
        )
    listening = _listen(arguments.host, arguments.port)
    models = _load_models(arguments)  # also where replicas load their own: errors show once
    host, port = listening.getsockname()[:2]
    several = arguments.workers > 1
    config = uvicorn.Config(
        partial(_replica, arguments) if several else _create_app(arguments, models),
        factory=several,
        workers=arguments.workers,
        timeout_worker_healthcheck=_STARTUP_S,
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=4 * arguments.max_requests,
        # Requests that have arrived are answered by then; unfinished uploads may be cut.
        timeout_graceful_shutdown=arguments.deadline + 5,
    )
    # uvicorn drains on these signals and then sends them to itself again: that is no error.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit())
    show(f"captioner listens at http://{_url_host(host)}:{port}")
    if several:  # they share the socket: the kernel gives a connection to one that waits for it
        Multiprocess(config, sockets=[listening]).run()
    else:
        uvicorn.Server(config).run(sockets=[listening])
    return 0


def _replica(arguments: argparse.Namespace) -> FastAPI:
    """Return the application of one of several replicas, in its process."""
    from captioner.runtime.cores import usable_cores

    # The libraries that compute read it when they are imported, which comes later.
    os.environ["OMP_NUM_THREADS"] = str(max(1, usable_cores() // arguments.workers))
    return _create_app(arguments, _load_models(arguments))


def _create_app(arguments: argparse.Namespace, models: dict[str, Captioner]) -> FastAPI:
    from captioner.serving.app import create_app
    from captioner.serving.security import LOOPBACK_HOSTS, is_loopback
    from captioner.serving.service import Limits

    hosts = [*LOOPBACK_HOSTS, _url_host(arguments.host)] if is_loopback(arguments.host) else ["*"]
    return create_app(
        models,
        token=arguments.token or None,
        limits=Limits(
            max_bytes=arguments.max_megabytes * 10**6,
            max_pixels=arguments.max_megapixels * 10**6,
            max_requests=arguments.max_requests,
            deadline_s=arguments.deadline,
            allow_urls=arguments.allow_urls,
        ),
        allowed_hosts=hosts,
        allowed_origins=arguments.allow_origin,
    )


def _url_host(host: str) -> str:
    """Return the address as URLs have it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; opened before the models, so that a port in use is reported."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CaptionerError(
            f"cannot listen at {host}:{port} ({reason}); choose another with --host and --port"
        ) from None


def _load_models(arguments: argparse.Namespace) -> dict[str, Captioner]:
    """Load the chosen models by name, or without a choice all bundled ones, soft first."""
    from captioner.checkpoint import bundled_models

    chosen: list[str | Path] = [*arguments.model, *map(Path, arguments.checkpoint)]
    if not chosen:
        chosen = [*sorted(bundled_models(), key=lambda name: name != "soft")]
    models: dict[str, Captioner] = {}
    for model in chosen:
        name = model if isinstance(model, str) else model.resolve().name
        if name in models:
            raise CaptionerError(
                f"two models have the name '{name}'; rename the folder of one of them"
            )
        models[name] = load_captioner(model, arguments)
    return models
