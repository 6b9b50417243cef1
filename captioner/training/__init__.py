"""Training: tasks, the loop, and runs in their folders."""

from captioner.training.run import train
