"""Data formats, one file each; `captioner.registry.DATA_FORMATS` lists them.

A format is a function

    read(root, splits, *, file, coco_splits, existing) -> list[CaptionedImage]

root: Folder of the data set, which exists (for `table` also the file itself, for `webdataset` also
    a URL).
splits: Names of the splits to join, each once.
file: Captions file where the format has a choice of it, else None; `coco_splits`: see `coco`. A
    format refuses what it has no use for (`refuse_unused`).
existing: Set of the files on disk, for formats that look for an image in several places.

It returns the images that the split's files name, on disk or not, in the order of the file, with
ids that do not depend on which images are on disk, and raises DataError, in one sentence that names
the file and the line or entry, for whatever it cannot understand. It opens no image.
"""
