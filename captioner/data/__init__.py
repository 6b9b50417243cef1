"""Captions and photos: vocabulary, readers, transforms, sampler, loader, feature cache."""
