"""A web page and a REST interface for the Python one (the extra `serve`).

A request passes the middlewares of `security` and a route of `app`. `requests` reads its body;
`app` decodes the photo in a thread, runs the model (`batching`) and draws pictures.
"""
