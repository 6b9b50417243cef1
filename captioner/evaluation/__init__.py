"""Captions against references: the standard coco-caption scores, and the results file."""

from __future__ import annotations
