"""Run a web page and a REST interface on this machine.

Ctrl-C or SIGTERM: answer the requests that have arrived, then end; a second Ctrl-C ends
at once. Exit code: 0 ended so, 2 could not start.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from captioner.cli import command, load_captioner, parsing, show
from captioner.errors import CaptionerError

TOKEN_VARIABLE = "CAPTIONER_TOKEN"


@command
def serve(parser: parsing.CommandParser) -> int:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    port = parsing.number_from(0, 65535, int)
    add("--port", type=port, default=8000, help="0 takes a free one (default: 8000)")
    help_ = "secret that requests must send, needed where other machines can reach the host; safer "
    help_ += f"in the environment, as {TOKEN_VARIABLE}, where no list of processes shows it"
    add("--token", default=os.environ.get(TOKEN_VARIABLE) or None, help=help_)
    several: Any = {"action": "append", "default": []}
    help_ = "a web site whose pages may use it, as https://example.org; may be given several times"
    add("--allow-origin", type=_origin, metavar="ORIGIN", help=help_, **several)
    help_ = "a bundled model; several may be given, the first is the default (default: soft, hard)"
    add("--model", metavar="NAME", help=help_, **several)
    help_ = "a model folder, or a run; may be given several times"
    add("--checkpoint", metavar="DIR", help=help_, **several)
    parsing.add_device_options(parser)
    number = parsing.whole_number
    help_ = "requests processed at once; more are refused with 503 (default: 128)"
    add("--max-requests", type=number, default=128, help=help_)
    add("--max-megabytes", type=number, default=20, help="of a request (default: 20)")
    add("--max-megapixels", type=number, default=50, help="of a photo (default: 50)")
    help_ = "fetch photos whose addresses requests name, but not from private networks"
    add("--allow-urls", action="store_true", help=help_)
    help_ = "seconds for an upload to arrive, and again for its answer (default: 30)"
    add("--deadline", type=number, default=30, metavar="S", help=help_)
    arguments = parser.parse()

    import uvicorn

    from captioner.captioner import Captioner
    from captioner.checkpoint import bundled_models
    from captioner.serving.app import create_app
    from captioner.serving.requests import Limits
    from captioner.serving.security import LOOPBACK_HOSTS, is_loopback

    is_local = is_loopback(arguments.host)
    if not is_local and not arguments.token:
        raise CaptionerError(
            f"other machines can reach {arguments.host or 'every address'}, so give a token with "
            f"--token or in {TOKEN_VARIABLE}, or listen at 127.0.0.1"
        )
    host, port = arguments.host, arguments.port
    try:  # before the models are loaded, so that a port in use is reported
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        raise CaptionerError(
            f"cannot listen at {host}:{port} ({error}); choose another with --host and --port"
        ) from None
    with listening:
        host, port = listening.getsockname()[:2]
        chosen: list[str | Path] = [*arguments.model, *map(Path, arguments.checkpoint)]
        models: dict[str, Captioner] = {}
        for model in chosen or sorted(bundled_models(), reverse=True):
            name = model if isinstance(model, str) else model.resolve().name
            if name in models:
                raise CaptionerError(f"two models have the name '{name}'; rename the folder of one")
            models[name] = load_captioner(model, arguments)
        app = create_app(
            models,
            token=arguments.token or None,
            limits=Limits(
                max_bytes=arguments.max_megabytes * 10**6,
                max_pixels=arguments.max_megapixels * 10**6,
                max_requests=arguments.max_requests,
                deadline_s=arguments.deadline,
                allow_urls=arguments.allow_urls,
            ),
            allowed_hosts=[*LOOPBACK_HOSTS, _url_host(arguments.host)] if is_local else ["*"],
            allowed_origins=arguments.allow_origin,
        )

        class Server(uvicorn.Server):
            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                """Drain; a second Ctrl-C ends at once. uvicorn would print tracebacks then."""
                if sig == signal.SIGINT:
                    signal.signal(sig, signal.SIG_DFL)
                super().handle_exit(sig, frame)

        config = uvicorn.Config(
            app,
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
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda *_: sys.exit())
        show(f"captioner listens at http://{_url_host(host)}:{port}")
        Server(config).run(sockets=[listening])
    return 0


def _origin(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s]+/?", text):
        raise argparse.ArgumentTypeError(f"'{text}' is no origin, such as https://example.org")
    return text.lower().rstrip("/")


def _url_host(host: str) -> str:
    """Return the address as URLs have it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host
