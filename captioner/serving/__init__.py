"""A web page and a REST interface for the Python one (the extra `serve`).

A request passes `connections` (limits of the HTTP server), the middlewares of `security`, a route
of `app`, `admission`, and `requests`, which reads its body. `service` then has the image decoded in
another process (`pool`, `worker`), runs the model (`batching`) and has the picture drawn (`pool`).
"""

from __future__ import annotations
