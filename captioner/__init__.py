"""Image captioning after *Show, Attend and Tell*, with pictures of the attention to each word."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Caption", "Captioner", "__version__"]

if TYPE_CHECKING:
    from captioner.captioner import Captioner
    from captioner.visualization import Caption


def __getattr__(name: str) -> Any:
    """Import torch and the model only when they are used."""
    modules = {"Captioner": "captioner.captioner", "Caption": "captioner.visualization"}
    if name in modules:
        return getattr(import_module(modules[name]), name)
    raise AttributeError(f"module 'captioner' has no attribute '{name}'")
