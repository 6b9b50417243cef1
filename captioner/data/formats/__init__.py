"""Data formats, one file each; `captioner.registry.DATA_FORMATS` lists them.

A format is a function

    read(data: DataFiles, splits) -> list[CaptionedImage]

of the splits to join, each once. A format refuses what it has no use for (`DataFiles.refuse`).
It returns the images that the split's files name, on disk or not, in the order of the file, with
ids that do not depend on which images are on disk, and raises DataError, in one sentence that names
the file and the line or entry, for whatever it cannot understand. It opens no image.
"""
