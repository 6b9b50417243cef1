"""Captions of whole collections, on one machine or a Ray cluster; see docs/scale.md."""
