"""A web page and a REST interface for the Python one (the extra `serve`).

A request passes the middlewares of `security`, a route of `app`, and `requests`, which reads its
body. `service` then decodes the photo in a thread, runs the model (`batching`) and draws pictures.
"""

from __future__ import annotations
