"""Freed memory stays with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from captioner.runtime import allocator

FAULTS = """
import resource
import torch
from captioner.runtime.allocator import keep_freed_memory

def faults() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.empty(2**24).fill_(1.0)  # 64 MiB: 16,384 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
faults()
plain = faults()
kept = keep_freed_memory()
faults()
print(kept, plain, faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_a_tensor_takes_the_pages_of_the_one_before() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True
    )
    kept, plain, after = done.stdout.split()
    assert kept == "True"
    assert int(plain) > 0, "without it each tensor faults its pages in"
    assert int(after) < int(plain) / 10


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert not allocator.keep_freed_memory()
    monkeypatch.setattr(allocator.sys, "platform", "darwin")
    assert not allocator.keep_freed_memory()
