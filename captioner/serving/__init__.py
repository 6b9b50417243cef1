"""A web page and a REST interface around the Python one (the extra `serve`).

`images` reads strangers' bytes in processes that may die, `batching` puts requests together,
`service` has both and the models, `app` is the HTTP around it.
"""

from __future__ import annotations
