"""Captions and images: formats, vocabulary, transforms, batches, and the feature cache."""
