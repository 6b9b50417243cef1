"""Image to grid to words: backbones, encoder, attention, decoders, and `build` that makes them."""
