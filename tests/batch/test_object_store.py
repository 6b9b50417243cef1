"""Collections and tar files in an object store: a server on this machine that speaks S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from batch_tools import parts, rows
from programs import Programs, Running


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[Any, dict[str, str]]]:
    """A store with an empty bucket, and the environment in which programs find it."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        system = s3fs.S3FileSystem(use_listings_cache=False)
        system.mkdir("bucket")
        yield system, environment
    server.stop()


@pytest.mark.slow
def test_a_run_from_store_to_store_writes_the_parts_of_a_local_one(
    store: tuple[Any, dict[str, str]],
    programs: Programs,
    collection: Path,
    undisturbed: Path,
    model: Path,
    tmp_path: Path,
) -> None:
    system, environment = store
    names = [f"{folder}/{2 * n + (folder == 'b'):03d}.png" for folder in "ab" for n in range(12)]
    for name in [*names, "b/broken.jpg"]:
        system.put(str(collection / name), f"bucket/photos/{name}")

    def run(output: object) -> Running:
        command = ["captioner", "batch", "s3://bucket/photos", "--output", output, "--maps"]
        command += ["--checkpoint", model, "--device", "cpu", "--workers", 1, "--shard-size", 10]
        return programs.start(*map(str, command), **environment)

    assert run(tmp_path).wait().code == 1
    captions = {row["id"]: (row["caption"], row["error"]) for row in rows(tmp_path)}
    expected = {row["id"]: (row["caption"], row["error"]) for row in rows(undisturbed)}
    assert list(captions) == [*names, "b/broken.jpg"]
    assert captions == {name: expected[name] for name in captions}

    assert run("s3://bucket/out").wait().code == 1
    system.pipe("bucket/out/parts/000000.parquet", b"torn")
    second = run("s3://bucket/out").wait()
    assert second.code == 1, second
    assert "b/broken.jpg: " in second.stderr
    found = {path.rpartition("/")[2]: system.cat(path) for path in system.ls("bucket/out/parts")}
    assert found == parts(tmp_path)
