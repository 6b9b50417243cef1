"""The commands of `captioner`, each a module of this package with a `main`."""

from __future__ import annotations

COMMANDS = {
    "caption": "write captions for photos and draw the attention to each word",
    "batch": "caption a whole collection, on one machine or a Ray cluster",
    "score": "read a caption that you bring and draw the attention to each word",
    "train": "train a model from a recipe",
    "finetune": "train a model on, with your own photos",
    "check-data": "find mistakes in a data set before training on it",
    "shards": "write a data set as WebDataset shards, to train from",
    "evaluate": "score a model on a data set",
    "compare": "test whether two evaluations differ by more than chance",
    "plot": "draw a run's curves and how its attention grew",
    "serve": "run a web page and a REST interface",
    "average": "average models that were trained on from the same one",
    "calibrate": "fit the confidence of a model's captions",
    "export": "copy a trained model into a small folder to share",
    "doctor": "check the installation, and say what is missing",
    "completion": "print a script that completes commands in your shell",
}
