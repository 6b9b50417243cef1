"""A service of tiny models, called without a socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving_tools import BASE
from starlette.testclient import TestClient

from captioner import Captioner
from captioner.serving.app import create_app


@pytest.fixture(scope="session")
def tiny_models(tiny_model: Path, tiny_hard_model: Path) -> dict[str, Captioner]:
    return {
        "tiny": Captioner.from_pretrained(tiny_model, device="cpu"),
        "tiny_hard": Captioner.from_pretrained(tiny_hard_model, device="cpu"),
    }


# Not of the session: its pool's processes would live on among the tests of other packages.
@pytest.fixture(scope="module")
def client(tiny_models: dict[str, Captioner]) -> Iterator[TestClient]:
    with TestClient(create_app(tiny_models), base_url=BASE) as opened:
        yield opened


@pytest.fixture
def photo(drawn_photos: Path) -> bytes:
    return (drawn_photos / "01.jpg").read_bytes()
