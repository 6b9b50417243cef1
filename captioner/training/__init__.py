"""Training: losses, optimiser, validation, the loop."""

from captioner.training.run import train

__all__ = ["train"]
