from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

import pytest

from captioner.errors import CaptionerError
from captioner.files import check_writable, save, save_bytes


def test_a_file_reads_back_and_its_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.txt"
    save_bytes(b"content", path)
    assert path.read_bytes() == b"content"
    assert list(path.parent.iterdir()) == [path]


def test_who_has_the_old_file_open_reads_it_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save_bytes(b"old", path)
    with path.open("rb") as before:
        save_bytes(b"newer", path)
        assert before.read() == b"old"
    assert path.read_bytes() == b"newer"


def test_a_saved_file_is_as_readable_as_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    save_bytes(b"", tmp_path / "saved")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "saved")}
    assert len(modes) == 1


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

    def fail_half_way(file: BinaryIO) -> None:
        file.write(b"half of the n")
        raise failure

    with pytest.raises(raised) as caught:
        save(path, fail_half_way)
    if raised is CaptionerError:
        assert str(path) in str(caught.value)
        assert "No space left on device" in str(caught.value)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (
        tmp_path / "file" / "a",
        tmp_path / "file" / "b" / "a",
        tmp_path / "folder",
        tmp_path / ("x" * 300),
        Path(),
        Path(".."),
    ):
        with pytest.raises(CaptionerError) as caught:
            save_bytes(b"", path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        with pytest.raises(CaptionerError) as before:
            check_writable(path)
        assert str(before.value) == str(caught.value)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder"]


def test_a_name_as_long_as_the_file_system_allows_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * os.pathconf(tmp_path, "PC_NAME_MAX"))
    save_bytes(b"", path)
    assert path.is_file()


def test_asking_for_a_place_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text("old")
    check_writable(path)
    check_writable(tmp_path / "new" / "results.json")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["new", "results.json"]
    assert not list((tmp_path / "new").iterdir())
    assert path.read_text() == "old"
