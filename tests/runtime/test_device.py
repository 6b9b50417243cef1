"""Choosing a device, and what is said of one that cannot do the work."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from captioner.cli import run_command
from captioner.errors import ConfigError
from captioner.runtime.device import choose_device


def test_a_gpu_that_does_not_work_is_reported_and_not_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_kernel(*size: int, device: torch.device) -> torch.Tensor:
        raise RuntimeError(f"{device} error: no kernel image is available\nand a long explanation")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "zeros", no_kernel)
    assert choose_device() == torch.device("cpu")
    reported = capsys.readouterr().err
    assert "cuda error: no kernel image is available" in reported
    assert "long explanation" not in reported
    assert "CPU" in reported
    assert reported.count("\n") == 1


@pytest.mark.parametrize("name", ["meta", "nothing", "", "cpu:x", None])
def test_an_unknown_device_is_refused_in_one_sentence(name: Any) -> None:
    with pytest.raises(ConfigError, match=f"^device: '{name}' cannot be used on this machine"):
        choose_device(name)


def test_a_full_gpu_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore follows.")

    assert run_command(command, "train") == 2
    message = capsys.readouterr().err
    assert message.startswith("error: CUDA out of memory. Tried to allocate 2 GiB.")
    assert "data.batch_size" in message
    assert message.count("\n") == 1
