"""Files are written completely or not at all, under names of their own."""

from __future__ import annotations

import errno
import itertools
import stat
from pathlib import Path

import pytest

from captioner.errors import CaptionerError
from captioner.files import claim_name, replacing, save_bytes, writing


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
