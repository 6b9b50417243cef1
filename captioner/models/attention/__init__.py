"""Attention over a grid, given the decoder's state: score, window, select."""
