"""The data of the training tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of drawn photos, 9 of them for training: with two captions each, five batches."""
    return tiny.draw_table(tmp_path_factory.mktemp("table") / "photos", train=9)
