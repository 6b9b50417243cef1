"""The bundled encoder against timm's network of the same weights."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.timing import Table, has_bfloat16, in_turns, peak_memory_mib
from captioner import Captioner


@torch.inference_mode()
def run(*, device: torch.device, batch: int, rounds: int) -> Table:
    """Photos a second of what captions photos here and of timm's eager float32 network.

    On a CPU that is the runtime; PyTorch's way is listed as well.
    """
    import timm

    captioner = Captioner.from_pretrained(device=str(device))
    in_torch = Captioner.from_pretrained(device=str(device), engine="torch")
    size = captioner.config.preprocess.height_px
    photos = torch.randn(batch, 3, size, size, device=device)
    theirs = timm.create_model("tf_efficientnet_lite2").eval().to(device)
    last = photos.to(memory_format=torch.channels_last)
    images = list(photos.cpu().numpy())
    calls: dict[str, Callable[[], object]] = {
        "captioner, as it captions": lambda: captioner.engine.encode(images),
        "captioner in PyTorch": lambda: in_torch.engine.encode(images),
        "timm": lambda: theirs.forward_features(photos),
    }
    if has_bfloat16(device):
        rough = Captioner.from_pretrained(device=str(device), precision="bfloat16")
        calls["in PyTorch, bfloat16"] = lambda: rough.model.encoder(last.to(rough.dtype))
    found = in_turns(calls, device=device, rounds=rounds)
    rows = [
        {
            "encoder": name,
            "photos a second": batch / timing.median_s,
            "least s": timing.least_s,
            "most s": timing.most_s,
            "times as fast as timm": found["timm"].median_s / timing.median_s,
        }
        for name, timing in found.items()
    ]
    title = (
        f"Encoder, EfficientNet-Lite2 at {size} px, B {batch}; peak memory "
        f"{peak_memory_mib(device):.0f} MiB"
    )
    return Table(title, rows)
