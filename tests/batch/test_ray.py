"""`captioner batch --engine ray` on a small cluster: the output of the local engine, or a refusal."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from batch_tools import parts
from programs import Programs

# Ray lets only those in who have the token of the cluster: this one's is made for these tests.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of two CPUs and a GPU, which need not be there to be counted."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in TOKEN.items():  # before the import, which reads them
            patch.setenv(name, value)
        ray = pytest.importorskip("ray")
        for attempt in range(3):  # Ray gives itself 30 s to start: too little on a busy machine
            try:
                ray.init("local", num_cpus=2, num_gpus=1, include_dashboard=False)
                break
            except Exception as error:
                if attempt == 2 or "timed out" not in str(error):
                    raise
        yield ray.get_runtime_context().gcs_address
        ray.shutdown()


def actors() -> list[int]:
    """The processes of the actors that hold the model."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::ShardWorker" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.slow  # a cluster, and PyTorch imported anew in each of its processes
def test_ray_gives_the_bytes_of_the_local_engine_though_a_worker_is_killed(
    programs: Programs,
    cluster: str,
    collection: Path,
    undisturbed: Path,
    model: Path,
    tmp_path: Path,
) -> None:
    output = tmp_path / "out"
    running = programs.start(
        *("captioner", "batch", collection, "--output", output, "--checkpoint", model),
        *("--device", "cpu", "--workers", 2, "--shard-size", 10, "--maps"),
        *("--engine", "ray", "--ray-address", cluster),
        **TOKEN,
    )
    done = output / "parts"
    running.wait_until(lambda: running.poll() is not None or done.exists())
    assert running.poll() is None, running.wait()
    for pid in actors()[:1]:
        os.kill(pid, signal.SIGKILL)
    outcome = running.wait()
    assert outcome.code == 1, outcome
    assert "b/broken.jpg: " in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert parts(output) == parts(undisturbed)
