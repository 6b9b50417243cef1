"""A pretrained CNN as a row of named stages, and what every source of them needs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from captioner.errors import ConfigError, WeightsError

Interpolation: TypeAlias = Literal["bilinear", "bicubic", "lanczos"]
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocessing:
    """What the pretrained weights expect of a photo."""

    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    interpolation: Interpolation = "bilinear"


class Backbone(nn.Module):
    """Named stages applied one after another: photos [B, 3, H, W] to a feature map [B, D, h, w].

    photo_by_photo: so many of the first stages are applied to one photo after another.
    """

    photo_by_photo = 0

    def __init__(
        self,
        stages: list[tuple[str, nn.Module]],
        *,
        channels: int,
        preprocessing: Preprocessing,
    ) -> None:
        super().__init__()
        self.names = [name for name, _ in stages]
        self.stages = nn.ModuleList([stage for _, stage in stages])
        self.channels = channels
        self.preprocessing = preprocessing

    def forward(self, x: Tensor, *, start: int = 0, stop: int | None = None) -> Tensor:
        """Apply stages start ... stop - 1."""
        end = len(self.stages) if stop is None else stop
        middle = min(max(self.photo_by_photo, start), end)
        if middle > start:
            x = torch.cat([_through(self.stages[start:middle], photo) for photo in x.split(1)])
        return _through(self.stages[middle:end], x)

    def fingerprint(self, stop: int | None = None) -> str:
        """SHA-256 over the names and values of the first stages' weights."""
        digest = hashlib.sha256()
        for name, value in self.stages[:stop].state_dict().items():
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()


def _through(stages: nn.ModuleList, x: Tensor) -> Tensor:
    for stage in stages:
        x = stage(x)
    return x


def cut_behind(backbone: Backbone, tap: str | None, name: str) -> Backbone:
    """Cut the stages off behind `tap`."""
    if tap is None or tap == backbone.names[-1]:
        return backbone
    if tap not in backbone.names:
        raise ConfigError(
            f"encoder.tap: {name} has no stage '{tap}'; its stages are {', '.join(backbone.names)}"
        )
    count = backbone.names.index(tap) + 1
    stages = list(zip(backbone.names[:count], backbone.stages[:count], strict=True))
    body = nn.Sequential(*(stage for _, stage in stages))
    channels = channels_of(body, name)
    return Backbone(stages, channels=channels, preprocessing=backbone.preprocessing)


def channels_of(body: nn.Module, name: str) -> int:
    """Channels of the feature map, by running it once on zeros."""
    was_training = body.training
    try:
        with torch.no_grad():
            output = body.eval()(torch.zeros(1, 3, 64, 64))
    except (AssertionError, RuntimeError, ValueError):  # transformers take one size of photo only
        output = None
    body.train(was_training)
    if not isinstance(output, Tensor) or output.dim() != 4:
        raise ConfigError(
            f"encoder.backbone: {name} does not give a feature map [B, D, h, w]; "
            "only convolutional networks can be used"
        )
    return output.shape[1]


def is_file(weights: str) -> bool:
    return weights not in ("default", "none") and Path(weights).is_file()


def no_such_weights(weights: str, name: str, accepted: list[str]) -> ConfigError:
    return ConfigError(
        f"encoder.weights: '{weights}' is neither a file nor an entry of {name}; "
        f"use a file's path or one of {', '.join(accepted)}"
    )


def load_weights_file(network: nn.Module, path: str, name: str) -> None:
    try:
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file

            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
        network.load_state_dict(state)
    except Exception as error:  # noqa: BLE001  any unreadable or foreign file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(f"{path} does not hold the weights of {name} ({reason})") from None


def parameters_in_order(backbone: Backbone) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters by the network's own names (without the stage wrappers), in order of depth."""
    for stage_name, stage in zip(backbone.names, backbone.stages, strict=True):
        for name, parameter in stage.named_parameters():
            inner = name.removeprefix("network.") if stage_name == "body" else name
            yield (inner if stage_name == "body" else f"{stage_name}.{inner}"), parameter


class OneOutput(nn.Module):
    """One output of a network that gives several."""

    def __init__(self, network: nn.Module, key: str | int) -> None:
        super().__init__()
        self.network = network
        self.key = key

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[self.key]
