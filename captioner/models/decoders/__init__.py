"""Decoders: from a grid of annotation vectors to words."""
