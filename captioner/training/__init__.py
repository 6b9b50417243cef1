"""Training: losses, optimiser, validation, the loop."""

from captioner.training.loop import train

__all__ = ["train"]
