"""Image captioning after *Show, Attend and Tell*, with pictures of the attention to each word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Caption", "Captioner", "__version__"]

if TYPE_CHECKING:
    from captioner.captioner import Captioner
    from captioner.types import Caption


def __getattr__(name: str) -> Any:
    """Import torch and the model only when they are used."""
    if name == "Captioner":
        from captioner.captioner import Captioner

        return Captioner
    if name == "Caption":
        from captioner.types import Caption

        return Caption
    raise AttributeError(f"module 'captioner' has no attribute '{name}'")
