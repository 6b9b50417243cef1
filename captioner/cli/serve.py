"""`captioner serve`: a web page and a REST interface."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from captioner.cli import load_captioner, parsing, run_command, show
from captioner.errors import CaptionerError, needs_extra

if TYPE_CHECKING:
    import uvicorn
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
        help="requests processed at once, three quarters of them for one client; more are "
        "refused with 503 (default: 128)",
    )
    parser.add_argument(
        "--max-megabytes", type=parsing.whole_number, default=20, help="of a request (default: 20)"
    )
    parser.add_argument(
        "--max-megapixels", type=parsing.whole_number, default=50, help="of a photo (default: 50)"
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
        import uvicorn  # noqa: F401

        from captioner.serving import app  # noqa: F401
        from captioner.serving.security import is_loopback

    if arguments.token == "":  # as of a variable that is not set: nobody could log in
        raise CaptionerError("--token: is empty; give a token, or leave the option out")
    if not is_loopback(arguments.host) and not arguments.token:
        raise CaptionerError(
            f"other machines can reach {arguments.host or 'every address'}, so give a token with "
            f"--token or in {TOKEN_VARIABLE}, or listen at 127.0.0.1"
        )
    token = arguments.token or ""
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise CaptionerError("a token is made of ASCII letters, digits and signs without spaces")
    listening = _listen(arguments.host, arguments.port)
    models = _models(arguments)  # also where replicas load their own: errors show once
    host, port = listening.getsockname()[:2]
    address = f"http://{_url_host(host)}:{port}"
    if arguments.workers > 1:
        return _serve_replicas(arguments, listening, address)
    return _serve(arguments, listening, address, models)


def _serve(
    arguments: argparse.Namespace,
    listening: socket.socket,
    address: str,
    models: dict[str, Captioner],
) -> int:
    """Serve in this process until a signal ends it."""
    import uvicorn

    from captioner.runtime.parallel import shared_cores

    with shared_cores(next(iter(models.values())).device) as passes:
        app = _app(arguments, models, passes)

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                show(f"captioner listens at {address}")

        server = Server(_config(arguments, app))
        # uvicorn drains on these signals and then sends them to itself again: that is no error.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        try:
            server.run(sockets=[listening])
        except SystemExit:  # of uvicorn, after the application has said why it cannot start
            return 2
    if app.state.service.abandoned:
        # A model still runs in a thread, which Python would wait for at its end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def _serve_replicas(arguments: argparse.Namespace, listening: socket.socket, address: str) -> int:
    """Serve in several processes until a signal ends them; uvicorn replaces those that die.

    They share the socket: the kernel gives each connection to a replica that waits for one.
    """
    from uvicorn.config import STARTUP_FAILURE
    from uvicorn.supervisors import Multiprocess

    class Replicas(Multiprocess):
        def init_processes(self) -> None:
            super().init_processes()
            if any(process.wait_until_ready(_STARTUP_S) for process in self.processes):
                show(f"captioner listens at {address}")

    config = _config(arguments, partial(_replica, arguments), factory=True)
    replicas = Replicas(config, sockets=[listening])
    replicas.run()
    return 2 if any(each.exitcode == STARTUP_FAILURE for each in replicas.processes) else 0


def _replica(arguments: argparse.Namespace) -> FastAPI:
    """Return the application of one of several replicas, in its process."""
    from captioner.runtime.cores import usable_cores

    # The libraries that compute read it when they are imported, which comes later.
    os.environ["OMP_NUM_THREADS"] = str(max(1, usable_cores() // arguments.workers))
    return _app(arguments, _models(arguments, check_speed=False), passes=1)


def _app(arguments: argparse.Namespace, models: dict[str, Captioner], passes: int) -> FastAPI:
    """Return the application with the limits that the options set."""
    from captioner.serving.app import create_app
    from captioner.serving.connections import limit_logs
    from captioner.serving.security import LOOPBACK_HOSTS, is_loopback
    from captioner.serving.service import Limits

    limit_logs()
    hosts = [*LOOPBACK_HOSTS, _url_host(arguments.host)] if is_loopback(arguments.host) else ["*"]
    return create_app(
        models,
        token=arguments.token,
        limits=Limits(
            max_bytes=arguments.max_megabytes * 10**6,
            max_pixels=arguments.max_megapixels * 10**6,
            max_requests=arguments.max_requests,
            deadline_s=arguments.deadline,
            passes=passes,
        ),
        allowed_hosts=hosts,
        allowed_origins=arguments.allow_origin,
    )


def _config(arguments: argparse.Namespace, app: Any, *, factory: bool = False) -> uvicorn.Config:
    import uvicorn

    from captioner.serving.connections import (
        BACKLOG,
        Connections,
        LimitedProtocol,
        connection_limit,
    )

    protocol: Any = partial(LimitedProtocol, limits=Connections(connection_limit()))
    return uvicorn.Config(
        app,
        factory=factory,
        workers=arguments.workers,
        timeout_worker_healthcheck=_STARTUP_S,
        http=protocol,
        ws="none",
        backlog=BACKLOG,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        # Requests that have arrived are answered by then; unfinished uploads may be cut.
        timeout_graceful_shutdown=arguments.deadline + 5,
    )


def _url_host(host: str) -> str:
    """Return the address as URLs have it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; opened before the models, so that a port in use is reported."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()  # clients that connect before the models are loaded wait
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CaptionerError(
            f"cannot listen at {host}:{port} ({reason}); choose another with --host and --port"
        ) from None
    return listening


def _models(arguments: argparse.Namespace, *, check_speed: bool = True) -> dict[str, Captioner]:
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
        models[name] = load_captioner(model, arguments, check_speed=check_speed)
    return models
