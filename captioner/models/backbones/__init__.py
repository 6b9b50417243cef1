"""Pretrained CNNs: images to feature maps."""
