"""Child processes end with their parent, and Ctrl-C does to them what they say."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from captioner.runtime.children import blocked_interrupts, end_with_parent

POOL = """
import multiprocessing, os, signal, time
from concurrent.futures import ProcessPoolExecutor
from captioner.runtime.children import end_with_parent
context = multiprocessing.get_context("forkserver")
pool = ProcessPoolExecutor(1, context, end_with_parent, (signal.SIG_IGN,))
print(pool.submit(os.getpid).result(), flush=True)
time.sleep(60)
"""


def test_a_worker_ends_with_a_parent_that_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", POOL], stdout=subprocess.PIPE, text=True)
    with parent:
        worker = int(parent.stdout.readline())
        assert Path(f"/proc/{worker}").exists()
        parent.kill()
    end = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_processes_start_with_interrupts_blocked_until_they_say_what_these_do() -> None:
    here = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(1, context) as pool,
        ProcessPoolExecutor(1, context, end_with_parent, (signal.SIG_IGN,)) as ready,
    ):
        with blocked_interrupts():
            masks = [p.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()) for p in (pool, ready)]
        assert [signal.SIGINT in mask.result() for mask in masks] == [True, False]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == here
