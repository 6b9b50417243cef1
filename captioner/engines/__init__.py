"""What computes a caption: PyTorch on any device, or exported graphs on the CPU."""
