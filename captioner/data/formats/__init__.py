"""Layouts of data sets, one file each; `captioner.registry.DATA_FORMATS` lists them.

A layout is a class with the methods `recognise` and `read`: see `captioner.data.layouts.Layout`.
"""
