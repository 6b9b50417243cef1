"""README and docs, typed in: each page's commands by bash, in order, in a folder made for them.

The lines run as they stand, apart from what no test machine has (`SUBSTITUTES`). Commands get
options behind them that keep them small (`SMALL`): an epoch over a few drawn photos.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import textwrap
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from programs import REPOSITORY
from test_docs import PAGES, code_blocks

from captioner import Captioner
from captioner.training import train

pytestmark = pytest.mark.slow

MISSING = {name for name in ("unzip", "curl", "git") if shutil.which(name) is None}
if not (REPOSITORY / ".git").exists():
    MISSING.add("git")  # an sdist cannot be cloned
CPU = ["--device", "cpu"]
TRAIN = (
    "--train.epochs 1 --train.device cpu --train.samples 0 --train.val_beam_size 1 --data.workers 0 "
    "--train.val_photos 4 --data.min_count 1 --data.batch_size 8 --decoding.max_words 4 --encoder.weights none"
).split()
SMALL = {
    "train": TRAIN,
    "finetune": [option for option in TRAIN if option not in ("--encoder.weights", "none")],
    "evaluate": [*CPU, "--limit", "2"],
    "calibrate": CPU,
    "batch": ["--workers", "1", *CPU],
}
SUBSTITUTES = {
    "s3://bucket": "{home}/bucket",
    "{0000..0999}": "{0000..0001}",
    "--ray-address auto": "",  # a cluster that runs already; Ray starts one here
    "--nproc-per-node 8": "--nproc-per-node 2",
    "REPOSITORY": f"file://{REPOSITORY}",
    "MODEL": "runs/one",
    "curl ": "curl --silent --show-error --fail ",
    "CAPTIONER_TOKEN=...": "CAPTIONER_TOKEN=secret",
    "8000": "{port}",
    "8080": "{port}",
}
# Installing is tests/test_packaging.py's and `make dist`'s; these would run inside themselves.
ELSEWHERE = re.compile(r"pip install|make (test|caption)|cd captioner$")


def draw_flickr8k(root: Path) -> None:
    (root / "images").mkdir(parents=True)
    lines = []
    for split, numbers in (("train", range(8)), ("dev", range(8, 22)), ("test", range(22, 26))):
        names = []
        for number in numbers:
            image, captions = tiny.photo(number)
            names.append(f"{number}.jpg")
            image.save(root / "images" / names[-1])
            lines += [f"{names[-1]}#{i}\t{text}" for i, text in enumerate(captions)]
        (root / f"Flickr_8k.{split}Images.txt").write_text("".join(f"{n}\n" for n in names))
    (root / "Flickr8k.token.txt").write_text("".join(f"{line}\n" for line in lines))


def draw_coco(root: Path) -> None:
    (root / "annotations").mkdir(parents=True)
    karpathy = []
    for split, numbers in (("train2017", range(1, 9)), ("val2017", range(9, 15))):
        (root / split).mkdir()
        images, annotations, objects = [], [], []
        for number in numbers:
            image, captions = tiny.photo(number)
            name = f"{number:012d}.jpg"
            image.save(root / split / name)
            size = {"width": image.width, "height": image.height}
            images.append({"id": number, "file_name": name, **size})
            annotations += [
                {"id": 10 * number + i, "image_id": number, "caption": text.replace("disc", "dog")}
                for i, text in enumerate(captions)
            ]
            objects.append(
                {"id": number, "image_id": number, "category_id": 18, "bbox": [4, 4, 30, 30]}
                | {"area": 900, "iscrowd": 0, "segmentation": [[4, 4, 34, 4, 34, 34, 4, 34]]}
            )
            karpathy.append(
                {
                    "filename": name,
                    "filepath": split,
                    "split": (("train", "restval") if number < 9 else ("val", "test"))[number % 2],
                    "cocoid": number,
                    "sentences": [{"raw": text} for text in captions],
                }
            )
        for kind, content in (("captions", annotations), ("instances", objects)):
            described = {"images": images, "annotations": content}
            described["categories"] = [{"id": 18, "name": "dog"}]
            (root / f"annotations/{kind}_{split}.json").write_text(json.dumps(described))
    (root / "dataset_coco.json").write_text(json.dumps({"dataset": "coco", "images": karpathy}))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A folder with what the pages name: photos, data sets, a run, results, archives."""
    folder = tmp_path_factory.mktemp("made")
    for name in ("photo.jpg", "holiday/one.jpg", "holiday/two.png", "photos/three.jpg"):
        (folder / name).parent.mkdir(exist_ok=True)
        tiny.photo(len(name))[0].save(folder / name)
    shutil.copytree(REPOSITORY / "docs/photos", folder / "docs/photos")
    (folder / "index.html").write_text('<img src="photo.jpg">')
    table = tiny.draw_table(folder / "data/own", train=12, val=14) / "captions.csv"
    first, *rows = table.read_text(encoding="utf-8").splitlines()
    (folder / "my.csv").write_text("\n".join([first, *(f"data/own/{row}" for row in rows), ""]))
    draw_flickr8k(folder / "data/flickr8k")
    draw_coco(folder / "data/coco")
    train(tiny.recipe(folder / "data/own", folder / "run", train__epochs=1, train__samples=1))
    captioner = Captioner.from_pretrained(folder / "run", device="cpu")
    for name, beam_size in (("soft", 1), ("hard", 2)):
        found = captioner.evaluate(folder / "data/own", split="val", beam_size=beam_size)
        (folder / f"{name}.json").write_text(json.dumps(found.results))
    found = [{"image_id": number, "caption": "a red disc"} for number in range(9, 15)]
    for name in ("theirs", "blip", "ours"):
        (folder / f"{name}.json").write_text(json.dumps(found))
    with zipfile.ZipFile(folder / "train2017.zip", "w") as archive:
        archive.write(folder / "photo.jpg")
    (folder / "bucket/shards").mkdir(parents=True)
    for number in range(2):
        with tarfile.open(folder / f"bucket/shards/{number:04d}.tar", "w") as shard:
            shard.add(folder / "photo.jpg", f"{number}.jpg")
    return folder


@pytest.fixture
def home(tmp_path: Path, made: Path) -> Path:
    """A copy of it, and programs that add what keeps commands small."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    for run in ("one", "two", "mine", "flickr8k_soft"):
        shutil.copytree(made / "run", tmp_path / "runs" / run)
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    programs = tmp_path / "bin"
    programs.mkdir()
    program = f"""\
        #!{sys.executable}
        import sys
        from captioner.__main__ import main
        small = {SMALL!r}
        if __name__ == "__main__":
            words = FIRST + sys.argv[1:]
            sys.exit(main([*words, *small.get(words[0], [])]))
        """
    for path, first in ((programs / "captioner", []), (tmp_path / "train.py", ["train"])):
        path.write_text(textwrap.dedent(program).replace("FIRST", repr(first)))
        path.chmod(0o755)
    return tmp_path


def lines_of(page: str) -> list[str]:
    lines = []
    for block in code_blocks(page, "", "sh", "bash"):
        lines += [line.strip() for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line and not ELSEWHERE.search(line)]


class Shell:
    """Types lines into bash; what serves stays in the background for the lines after it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = {
            **os.environ,
            "PATH": f"{home / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "PYTHONPATH": str(REPOSITORY),
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        }
        self.server: subprocess.Popen[str] | None = None

    def type(self, line: str) -> None:
        for name, value in SUBSTITUTES.items():
            line = line.replace(
                name, value.replace("{home}", str(self.home)).replace("{port}", str(self.port))
            )
        if "captioner serve" in line:
            self.serve(line)
            if "TOKEN" in line:  # the lines that follow ask the server without a token
                self.serve("captioner serve")
            return
        run = self.run(line)
        if "rank others no better than chance" in run.stderr:
            return  # which model of one epoch is luckier differs from processor to processor
        # Of alternatives, such as one GPU and eight, a reader types one.
        if there := re.search(r"(\S+) already holds a run", run.stderr):
            shutil.rmtree(self.home / there[1])
            run = self.run(line)
        for _ in range(3):  # Ray gives itself 30 s to start: too little on a busy machine
            if "timed out during startup" in run.stderr:
                run = self.run(line)
        # check-data finds that drawn photos are small, which is exit code 1: something to mend
        accepted = (0, 1) if "check-data" in line else (0,)
        assert run.returncode in accepted, f"{line}\n{run.stdout}\n{run.stderr}"
        assert "Traceback" not in run.stderr, f"{line}\n{run.stderr}"

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=900,
        )

    def serve(self, line: str) -> None:
        self.stop()
        if "--port" not in line:
            line += f" --port {self.port}"
        self.server = subprocess.Popen(
            ["bash", "-c", f"{line} --device cpu"],
            cwd=self.home,
            env=self.environment,
            start_new_session=True,
            text=True,
        )
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5)
                return
            except urllib.error.HTTPError:
                return  # it answers, if only that a token is missing
            except OSError:
                time.sleep(0.2)
        raise AssertionError(f"{line}: does not answer")

    def stop(self) -> None:
        if self.server is not None:
            os.killpg(self.server.pid, signal.SIGTERM)
            self.server.wait(60)


@pytest.fixture
def shell(home: Path) -> Iterator[Shell]:
    opened = Shell(home)
    yield opened
    opened.stop()


@pytest.mark.parametrize("page", [page for page in PAGES if lines_of(page)])
def test_a_page_can_be_typed_in_as_it_stands(page: str, shell: Shell) -> None:
    for line in lines_of(page):
        if not MISSING & set(line.split()):
            shell.type(line)
