"""Captions against references: the standard coco-caption scores, and the results file."""
