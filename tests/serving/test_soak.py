"""Ten minutes of honest and hostile clients together (`make test-slow`)."""

from __future__ import annotations

import os

import pytest

from benchmarks.soak import hostile_address, soak


@pytest.mark.slow
def test_hostile_clients_cost_honest_ones_little() -> None:
    seconds = float(os.environ.get("CAPTIONER_SOAK_S", "600"))
    figures = soak(seconds, clients=4, attack_from=hostile_address())
    honest = figures["with_hostile"]
    assert isinstance(honest, dict)
    assert honest["requests"] > 100
    assert (honest["lost"], honest["mixed_up"]) == (0, 0)
    assert figures["p99_ratio"] <= 3
    memory = figures["memory_mb"]
    assert isinstance(memory, dict)
    assert memory["most"] < memory["before"] + 1000
    assert figures["log_lines"] < 10 * 60 * 5
    assert figures["server_exit_code"] == 0
