"""A headless Chromium for tests of pages, which records what must never happen in one."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser of CAPTIONER_CHROMIUM or of the path, driven by playwright; skips without."""
    program = os.environ.get("CAPTIONER_CHROMIUM") or next(
        filter(None, map(shutil.which, NAMES)), ""
    )
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = ""
    if not program:
        if os.environ.get("CI"):  # or pages silently go untested
            pytest.fail("needs Chromium and playwright, and CI is set", pytrace=False)
        pytest.skip("needs Chromium on the path and Python's playwright")
    with sync_playwright() as playwright:
        # Software rendering and no sandbox: a container has neither a GPU nor user namespaces.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A page, with every console message, error and request that it made."""

    def __init__(self, context: Any) -> None:
        self.page = context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def asked_of_others(self, own: str) -> list[str]:
        """Requests to anywhere but addresses that start with `own`."""
        return [url for url in self.requests if not url.startswith((own, "data:", "blob:"))]


def until(page: Any, condition: str, *, seconds: float = 10.0) -> None:
    """Wait until a condition in JavaScript holds; playwright's own way is eval, which a
    Content-Security-Policy forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(f"Boolean({condition})"):
        assert time.monotonic() < end, f"never came true: {condition}"
        time.sleep(0.02)
