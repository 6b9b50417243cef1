"""Run `captioner` and kill it right before its n-th file operation below a folder.

    python tests/kill_before.py N FOLDER COUNT_FILE train --config ...

Operations are counted as Python's audit events tell them, of this process alone: files that are
opened to read or to write, made, renamed and removed. Where there are fewer than N, the command ends as
ever, and COUNT_FILE holds their number.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

EVENTS = frozenset(
    "open os.rename os.remove os.mkdir os.rmdir os.truncate os.link shutil.rmtree".split()
)


def install(kill_before: int, folder: str, counted: list[int]) -> None:
    main = os.getpid()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or os.getpid() != main or not isinstance(arguments[0], (str, bytes)):
            return
        if os.fsdecode(arguments[0]).startswith(folder):
            counted[0] += 1
            if kill_before and counted[0] >= kill_before:  # two threads may count at once
                os.kill(main, signal.SIGKILL)

    sys.addaudithook(hook)


if __name__ == "__main__":
    from captioner.__main__ import main

    counted = [0]
    install(int(sys.argv[1]), sys.argv[2], counted)
    code = main(sys.argv[4:])
    Path(sys.argv[3]).write_text(str(counted[0]), encoding="utf-8")
    sys.exit(code)
