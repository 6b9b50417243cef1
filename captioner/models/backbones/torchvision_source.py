"""Backbones from torchvision: VGG-19 and the ResNets in stages, all others as one stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from captioner.errors import ConfigError, WeightsError, error_summary
from captioner.models.backbones.backbone import (
    USABLE,
    Backbone,
    OneOutput,
    Preprocessing,
    channels_of,
    cut_behind,
    is_file,
    no_such_weights,
)
from captioner.models.backbones.weights_file import load_weights_file


def _torchvision_network(name: str, weights: str) -> tuple[Any, Preprocessing]:
    """Return a torchvision classifier with its weights, and their preprocessing."""
    from torchvision import models

    entries = models.get_model_weights(name)
    preprocessing = Preprocessing()
    chosen = None
    if weights == "default":
        chosen = entries.DEFAULT
    elif weights in entries.__members__:
        chosen = entries[weights]
    elif weights != "none" and not is_file(weights):
        raise no_such_weights(weights, name, ["default", "none", *entries.__members__])
    preset = (chosen or entries.DEFAULT).transforms()
    if hasattr(preset, "mean"):
        preprocessing = Preprocessing(
            tuple(preset.mean), tuple(preset.std), preset.interpolation.value
        )
    options = {}
    if name in ("googlenet", "inception_v3"):  # their weights need a rescaled input
        options = {"init_weights": False, "transform_input": True}
    network = models.get_model(name, weights=None, **options)
    if chosen is not None:
        _download(network, chosen, name)
    elif is_file(weights):
        load_weights_file(network, weights, name)
    return network, preprocessing


def _download(network: nn.Module, entry: Any, name: str) -> None:
    """Load weights from TORCH_HOME, or download them into it."""
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(entry.url).name
    try:
        network.load_state_dict(entry.get_state_dict(progress=True, check_hash=True))
    except Exception as error:  # noqa: BLE001  URLError, HTTPError, RuntimeError on a bad hash, ...
        raise WeightsError(
            f"the weights of {name} cannot be had ({error_summary(error, part='line')}); fetch "
            f"{entry.url} on another machine and put it at {file}, or name a file with "
            "encoder.weights"
        ) from None


def _resnet(name: str, weights: str) -> Backbone:
    """Cut a ResNet into the stages stem and layer1 to layer4."""
    network, preprocessing = _torchvision_network(name, weights)
    stem = nn.Sequential(network.conv1, network.bn1, network.relu, network.maxpool)
    stages: list[tuple[str, nn.Module]] = [("stem", stem)]
    stages += [(f"layer{i}", getattr(network, f"layer{i}")) for i in range(1, 5)]
    return Backbone(stages, channels=network.fc.in_features, preprocessing=preprocessing)


def _vgg(name: str, weights: str) -> Backbone:
    """Cut VGG into stages conv1_1 ... conv5_4, each with its ReLU; a pool starts the next stage.

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


def any_torchvision(
    name: str, weights: str, tap: str | None, size_px: tuple[int, int]
) -> Backbone | None:
    """Return a network of torchvision; None if torchvision has none of this name.

    Raises:
        ConfigError: It cannot be used, or there is no such tap or weights entry.
        WeightsError: The weights cannot be had.
    """
    from torchvision import models

    if name == "vgg19":
        return cut_behind(_vgg(name, weights), tap, name)
    if name in ("resnet50", "resnet101", "resnet152"):
        return cut_behind(_resnet(name, weights), tap, name)
    if name not in models.list_models(module=models):
        return None
    if name.startswith("vit_"):  # its last feature map would be the patches before the transformer
        raise ConfigError(
            f"encoder.backbone: {name} of torchvision gives no feature map [B, D, h, w]; {USABLE}"
        )
    from torchvision.models.feature_extraction import (
        create_feature_extractor,
        get_graph_node_names,
    )

    network, preprocessing = _torchvision_network(name, weights)
    # In training mode a network may have more nodes; torchvision's warning of it helps nobody.
    quiet = {"suppress_diff_warning": True}
    try:
        nodes = get_graph_node_names(network, **quiet)[1]
        if tap is None:
            tap = _last_feature_map(create_feature_extractor(network.eval(), nodes, **quiet), name)
        elif tap not in nodes:
            raise ConfigError(
                f"encoder.tap: {name} has no node '{tap}'; the last ones are "
                f"{', '.join(nodes[-8:])}"
            )
        extractor = create_feature_extractor(network, {tap: "grid"}, **quiet)
    except (torch.fx.proxy.TraceError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"encoder.backbone: {name} cannot be used as a feature extractor ({error})"
        ) from None
    body = OneOutput(extractor, "grid")
    channels = channels_of(body, name, size_px)
    return Backbone([("body", body)], channels=channels, preprocessing=preprocessing)


def _last_feature_map(extractor: nn.Module, name: str) -> str:
    """Return the last node whose output is a feature map larger than one cell."""
    with torch.no_grad():
        outputs = extractor(torch.zeros(1, 3, 224, 224))
    maps = [
        node
        for node, value in outputs.items()
        if isinstance(value, Tensor) and value.dim() == 4 and min(value.shape[2:]) > 1
    ]
    if not maps:
        raise ConfigError(
            f"encoder.backbone: {name} has no feature map [B, D, h, w] to attend to; {USABLE}"
        )
    return maps[-1]
