"""Scores of a cell given the decoder's state, one file each."""
