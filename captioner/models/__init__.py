"""Image to grid to words: backbones, the model, attention, decoders, and `build` for settings."""
