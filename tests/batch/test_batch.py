"""`captioner batch` on this machine: complete, once, the same again, and finished by the next run."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import tiny
import torch
from batch_tools import PHOTOS, parts, png, rows, write_tar
from programs import Commands, Programs

from captioner import Captioner
from captioner.batch import run
from captioner.batch.inputs import Shard
from captioner.batch.run import Job, ShardWorker, run_batch, run_local
from captioner.data import images
from captioner.engines import EngineName
from captioner.runtime import parallel

Batch = Callable[..., int]
one_process = partial(run_local, workers=1)
Captured = pytest.CaptureFixture[str]


def test_rows_are_what_the_captioner_gives(
    collection: Path, undisturbed: Path, model: Path
) -> None:
    captioner = Captioner.from_pretrained(model, device="cpu")
    found = rows(undisturbed)
    assert [row["path"] for row in found if row["error"] is None] == [
        str(path) for path in sorted(collection.glob("?/*.png"))
    ]
    assert len({row["caption"] for row in found}) > 5
    for row in found[:12]:
        caption = captioner.caption(row["path"])
        assert (row["caption"], row["words"]) == (caption.text, caption.words)
        assert row["id"] == os.path.relpath(row["path"], collection)
        total = float(caption.log_probs.sum()) + (caption.end_log_prob or 0)
        assert row["log_prob"] == pytest.approx(total, abs=1e-4)
        maps = np.array(row["maps"]).reshape(row["shape"])
        np.testing.assert_allclose(maps, caption.maps, atol=1e-3)


@pytest.mark.parametrize("engine", ["torch", pytest.param("runtime", marks=pytest.mark.slow)])
def test_what_hard_attention_draws_depends_on_the_shard_alone(
    engine: EngineName, collection: Path, tmp_path: Path
) -> None:
    from captioner.checkpoint_writer import save_model
    from captioner.export import export_graphs

    save_model(tmp_path / "model", *tiny.model(select="hard", at_test="sample"), card="")
    if engine == "runtime":
        export_graphs(tmp_path / "model")
    (tmp_path / "photos.txt").write_text(f"{collection / 'a/000.png'}\n" * 40)
    found = []
    for name, step in (("one", 1), ("other", -1)):  # the shards in order, and backwards
        job = Job(str(tmp_path / name), tmp_path / "model", device="cpu", engine=engine, maps=True)
        run_batch(
            str(tmp_path / "photos.txt"),
            job,
            lambda job, shards, step=step: map(ShardWorker(job).run, shards[::step]),  # type: ignore[misc,arg-type]
            shard_size=20,
        )
        found.append(parts(tmp_path / name))
    assert found[0] == found[1]
    assert len({row["log_prob"] for row in rows(tmp_path / "one")}) > 5


def test_for_a_gpu_photos_are_read_while_others_are_captioned(
    collection: Path, undisturbed: Path, model: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(parallel, "available_cores", lambda *_: 2)
    worker = ShardWorker(Job(str(tmp_path), model, engine="runtime", batch_size=1, device="cpu"))
    worker.captioner.device = torch.device("cuda")  # named and never used but for reading
    caption, read, third = worker.captioner.caption_batch, list[object](), threading.Event()

    def open_image(source: object) -> Any:
        read.append(source)
        if len(read) == 3:
            third.set()
        return images.open_image(source)

    def caption_batch(*arguments: Any, **options: Any) -> Any:
        assert third.wait(30), "the third photo is read before the first is captioned"
        assert len(arguments[0]) == 1
        return caption(*arguments, **options)

    monkeypatch.setattr(run, "open_image", open_image)
    monkeypatch.setattr(worker.captioner, "caption_batch", caption_batch)
    expected = [(row["path"], row["caption"]) for row in rows(undisturbed)[:8]]
    worker.run(Shard(0, [(path, path) for path, _ in expected]))
    assert [(row["path"], row["caption"]) for row in rows(tmp_path)] == expected


def test_a_photo_that_fails_is_a_row_with_its_reason(undisturbed: Path) -> None:
    (bad,) = (row for row in rows(undisturbed) if row["error"] is not None)
    assert bad["id"] == "b/broken.jpg"
    assert "not a photo" in bad["error"]
    assert bad["caption"] is bad["words"] is bad["log_prob"] is bad["maps"] is None
    summary = json.loads((undisturbed / "summary.json").read_bytes())
    assert (summary["photos"], summary["errors"], summary["shards"]) == (PHOTOS + 1, 1, 7)


def test_the_output_is_read_by_evaluate_and_by_batch(
    commands: Commands, batch: Batch, collection: Path, undisturbed: Path, tmp_path: Path
) -> None:
    references, results = tmp_path / "references.csv", tmp_path / "results.json"
    names = [f"a/{n:03d}.png" for n in range(0, PHOTOS, 2)]
    lines = [f"{collection / name},a disc" for name in names]
    references.write_text("\n".join(["image,caption", *lines]))
    command = ["captioner", "evaluate", "--root", references, "--split", "test"]
    outcome = commands.run(*command, "--results", undisturbed, "--output", results, PATH="/nowhere")
    assert outcome.code == 0, outcome
    captions = {row["path"]: row["caption"] for row in rows(undisturbed)}
    found = json.loads(results.read_text())["captions"]
    assert [entry["caption"] for entry in found] == [captions[str(collection / n)] for n in names]
    assert batch(undisturbed / "parts/000000.parquet", tmp_path / "again") == 0
    again = {row["path"]: row["caption"] for row in rows(tmp_path / "again")}
    assert again == {path: captions[path] for path in again}
    assert len(again) == 10


def test_a_second_run_does_only_what_does_not_verify(
    batch: Batch, collection: Path, tmp_path: Path, capsys: Captured
) -> None:
    output = tmp_path / "out"
    assert batch(collection, output) == 1
    assert "b/broken.jpg: " in capsys.readouterr().err
    before = parts(output)
    times = {name: (output / "parts" / name).stat().st_mtime_ns for name in before}
    (output / "parts/000001.parquet").write_bytes(before["000004.parquet"])
    (output / "parts/000002.parquet").write_bytes(before["000002.parquet"][:500])
    (output / "parts/000003.parquet").unlink()
    assert batch(collection, output) == 1
    told = capsys.readouterr().err
    assert "4 of 7 shards were done before" in told
    assert "b/broken.jpg: " in told  # as in the first run: it still failed
    assert parts(output) == before
    changed = {n for n in before if (output / "parts" / n).stat().st_mtime_ns != times[n]}
    assert changed == {"000001.parquet", "000002.parquet", "000003.parquet"}


def test_other_settings_are_refused_by_name(
    batch: Batch, collection: Path, undisturbed: Path, capsys: Captured
) -> None:
    before = parts(undisturbed)
    assert batch(collection, undisturbed, "--maps", "--beam-size", 2) == 2
    told = capsys.readouterr().err
    assert "was begun with another beam_size" in told
    assert "--output" in told
    assert batch(collection / "a", undisturbed, "--maps") == 2, (
        "fewer photos, whose parts are not removed"
    )
    assert "was begun with another input" in capsys.readouterr().err
    assert parts(undisturbed) == before


def test_retry_errors_does_shards_with_failures_again(
    batch: Batch, collection: Path, tmp_path: Path
) -> None:
    photo, file = tmp_path / "late.png", tmp_path / "photos.txt"
    file.write_text(f"{photo}\n{collection / 'a/000.png'}")
    assert batch(file, tmp_path / "out") == 1
    photo.write_bytes(png(3))
    assert batch(file, tmp_path / "out") == 1
    assert batch(file, tmp_path / "out", "--retry-errors") == 0
    assert all(row["caption"] for row in rows(tmp_path / "out"))


def test_where_every_photo_fails_nothing_was_done(batch: Batch, tmp_path: Path) -> None:
    (tmp_path / "photos.txt").write_text("none.jpg\n.\n")
    assert batch(tmp_path / "photos.txt", tmp_path / "out") == 2
    assert [row["error"] for row in rows(tmp_path / "out")] == [
        "no such file",
        "cannot be read (Is a directory)",
    ]


def test_webdataset_shards_are_parts(batch: Batch, tmp_path: Path) -> None:
    for number in range(2):
        members = {f"{number}{n}.png": png(10 * number + n) for n in range(5)}
        write_tar(tmp_path / f"{number}.tar", {**members, f"{number}0.txt": b"a caption"})
    assert batch(tmp_path / "{0..1}.tar", tmp_path / "out") == 0
    found = rows(tmp_path / "out")
    assert [row["id"] for row in found] == [f"{n:02d}" for n in [*range(5), *range(10, 15)]]
    assert all(row["caption"] for row in found)


def test_input_and_output_may_be_urls(model: Path, capsys: Captured) -> None:
    """In one process, because no other sees this one's memory."""
    system = fsspec.filesystem("memory")
    for number in range(12):
        system.pipe(f"/far/{number:02d}[1].png", png(number))
    system.pipe("/far/12.png", b"")
    job = Job("memory://out", model, device="cpu")
    totals = run_batch("memory://far", job, one_process, shard_size=5)
    assert (totals.photos, totals.errors, totals.shards) == (13, 1, 3)
    told = capsys.readouterr().err.splitlines()
    assert any("12.png: " in line and "empty" in line for line in told)
    assert system.exists("/out/parts/000002.parquet")
    again = run_batch("memory://far", job, None, shard_size=5)  # type: ignore[arg-type]
    assert again == totals


def test_a_worker_that_is_killed_ends_the_run_and_the_next_finishes_it(
    batch: Batch, collection: Path, undisturbed: Path, tmp_path: Path, capfd: Captured
) -> None:
    output = tmp_path / "out"

    def kill() -> None:
        while not list(output.glob("parts/*.parquet")):
            time.sleep(0.01)
        os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert batch(collection, output, "--maps", "--workers", 2) == 2
    killer.join()
    assert "error: a worker process was ended, usually because memory" in capfd.readouterr().err
    assert batch(collection, output, "--maps") == 1
    assert "shards were done before" in capfd.readouterr().err
    assert parts(output) == parts(undisturbed)


def test_a_killed_run_is_finished_by_the_next(
    programs: Programs,
    batch: Batch,
    collection: Path,
    undisturbed: Path,
    model: Path,
    tmp_path: Path,
    capfd: Captured,
) -> None:
    output = tmp_path / "out"
    command = ["captioner", "batch", collection, "--output", output, "--checkpoint", model]
    command += ["--device", "cpu", "--workers", 2, "--shard-size", 10, "--maps"]
    first = programs.start(*command)
    first.wait_until(lambda: list(output.glob("parts/*.parquet")) or first.poll() is not None)
    assert first.poll() is None
    os.kill(first.pid, signal.SIGKILL)  # the first process alone: its workers end by themselves
    first.wait()
    assert batch(collection, output, "--maps") == 1
    assert "shards were done before" in capfd.readouterr().err
    assert parts(output) == parts(undisturbed)


def test_ctrl_c_while_workers_start_ends_them_without_a_word(
    programs: Programs, collection: Path, model: Path, tmp_path: Path
) -> None:
    command = ["captioner", "batch", collection, "--output", tmp_path / "out", "--checkpoint"]
    run = programs.start(*command, model, *("--device", "cpu", "--workers", 2, "--shard-size", 10))
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    run.wait_until(lambda: len(children.read_text().split()) > 1)  # the first keeps semaphores
    run.signal(signal.SIGINT)
    outcome = run.wait()
    assert (outcome.code, "Traceback" in outcome.stderr) == (130, False), outcome.stderr


def test_one_run_at_a_time_writes_to_a_folder(
    batch: Batch, collection: Path, undisturbed: Path, capsys: Captured
) -> None:
    from captioner.storage import locked

    with locked(undisturbed / ".lock", wait=False):
        assert batch(collection, undisturbed, "--maps") == 2
    assert "another run writes there" in capsys.readouterr().err
