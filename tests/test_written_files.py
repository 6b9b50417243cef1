"""Files are written completely or not at all, and a lock keeps other processes away."""

from __future__ import annotations

import errno
import itertools
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from captioner.errors import CaptionerError
from captioner.files import claim_name, locked, replacing, save_bytes, word_names, writing


def test_a_file_reads_back_and_its_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.txt"
    save_bytes(b"content", path)
    assert path.read_bytes() == b"content"
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    for mode in (0o600, 0o664):
        (tmp_path / "saved").touch()
        (tmp_path / "saved").chmod(mode)
        save_bytes(b"new", tmp_path / "saved")
        assert stat.S_IMODE((tmp_path / "saved").stat().st_mode) == mode


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), CaptionerError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ValueError("not a number"), ValueError),
    ],
)
def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, failure: BaseException, raised: type[BaseException]
) -> None:
    path = tmp_path / "a"
    save_bytes(b"old", path)

    def fail_half_way() -> None:
        with writing(path), replacing(path) as file:
            file.write(b"half of the n")
            raise failure

    with pytest.raises(raised) as caught:
        fail_half_way()
    if raised is CaptionerError:
        assert str(path) in str(caught.value)
        assert "No space left on device" in str(caught.value)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


HOLDER = """
import sys, time
from pathlib import Path
from captioner.files import locked
with locked(Path(sys.argv[1]), wait=False):
    print("locked", flush=True)
    sys.stdin.readline()
"""


def test_a_lock_keeps_another_process_out_until_it_ends_in_any_way(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    for kill in (False, True):
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "locked\n"
            with pytest.raises(BlockingIOError), locked(path, wait=False):
                pass
            other.kill() if kill else other.communicate("go\n")
        with locked(path, wait=False):
            pass


@pytest.mark.parametrize(
    "photos",
    [
        ["/p/a.jpg", "/p/a.png", "/p/a.jpg.png"],
        ["/p/a.JPG", "/p/A.jpg", "/p/a.png"],
        ["/x/y/a.jpg", "/x-y/a.jpg", "/y/a.jpg", "/x/z/y/a.jpg"],
    ],
)
def test_names_are_distinct_on_every_file_system_in_any_order_and_stay(photos: list[str]) -> None:
    for order in itertools.permutations(photos):
        owners: dict[str, str] = {}
        names = [claim_name(owners, path, Path(path).stem) for path in order]
        assert names[0] == Path(order[0]).stem
        assert len({name.casefold() for name in names}) == len(photos)
        assert not any("/" in name for name in names)
        assert [claim_name(owners, path, Path(path).stem) for path in order] == names


def test_words_become_file_names_that_every_system_takes() -> None:
    names = word_names("photo.jpg", ["a", "l'été", "../..", "", "<unk>", "x" * 99, "A\x00/b"])
    assert names == [
        "photo.jpg.01-a.png",
        "photo.jpg.02-l-été.png",
        "photo.jpg.03-word.png",
        "photo.jpg.04-word.png",
        "photo.jpg.05-unk.png",
        f"photo.jpg.06-{'x' * 32}.png",
        "photo.jpg.07-A-b.png",
    ]
