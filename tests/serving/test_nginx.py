"""Hostile clients and honest ones behind nginx with the configuration of docs/serving.md."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from benchmarks.soak import soak


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="each client has an address of its own")
@pytest.mark.skipif(
    not shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin"),
    reason="needs nginx (apt-get install nginx)",
)
def test_hostile_clients_behind_nginx_cost_honest_ones_little() -> None:
    figures = soak(float(os.environ.get("CAPTIONER_SOAK_S", "300")), clients=4)
    honest, memory = figures["with_hostile"], figures["memory_mb"]
    assert honest["requests"] > 100, figures
    assert (honest["lost"], honest["mixed_up"]) == (0, 0), figures
    assert figures["p99_ratio"] <= 3, figures
    assert memory["most"] < memory["before"] + 500, figures
    assert figures["server_exit_code"] == 0
