"""Layouts of data sets: functions that `captioner.registry.DATA_FORMATS` lists.

Each takes `DataFiles` and returns a `Recognised` data set, or None if it is of another layout.
"""
