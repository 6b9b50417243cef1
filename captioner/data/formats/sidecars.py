"""Images with a text or JSON file of the same name each, as caption tools write them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from captioner.data.formats.table import table, texts_of
from captioner.data.layouts import Annotations, DataFiles, NamedImage, Recognised
from captioner.data.records import CAPTION_COLUMNS, numbered_lines, read_json, usual_column
from captioner.data.splits import split_of_folder

_SUFFIXES = (".json", ".caption", ".txt")  # of several, the last counts


def sidecars(data: DataFiles) -> Recognised | None:
    """Find `a.jpg` with `a.txt` or `a.caption`, one caption a line, or `a.json` with `caption`.

    Folders called train, val and test in the root are splits. Ids are names from the root.
    """
    texts = _texts(data) if data.named_file is None else {}
    share = len(texts) / max(1, len(data.images))
    if not texts or (data.format != "sidecars" and share < 0.5 and (share < 0.1 or table(data))):
        return None

    def read() -> Annotations:
        names = [image.relative_to(data.folder).as_posix() for image in data.images]
        splits = list(map(split_of_folder, names))
        if not all(splits):
            splits = [""] * len(names)
        captions = [_captions(texts[i]) if i in texts else () for i in data.images]
        return Annotations(list(map(NamedImage, names, captions, names, splits)), [data.folder])

    return Recognised(f"{len(texts)} text or JSON files next to photos of the same name", read)


def _captions(path: Path) -> tuple[str, ...]:
    if path.suffix.lower() != ".json":
        return tuple(line for _, line in numbered_lines(path))
    facts = read_json(path)
    column = usual_column(list(facts), CAPTION_COLUMNS) if isinstance(facts, dict) else None
    return (column and texts_of([facts[column]])) or ()


def _texts(data: DataFiles) -> dict[Path, Path]:
    """Return the text file of each image: a.txt or a.jpg.txt next to it, or else captions/a.txt."""
    texts = [path for path in data.others if path.suffix.lower() in _SUFFIXES]
    texts.sort(key=lambda path: _SUFFIXES.index(path.suffix.lower()))
    by_path = {path.with_suffix(""): path for path in texts}
    images = data.images
    pairs = {i: by_path.get(i.with_suffix("")) or by_path.get(i) for i in images}
    if not any(pairs.values()):
        stems, text_stems = Counter(i.stem for i in images), Counter(p.stem for p in texts)
        by_stem = {path.stem: path for path in texts if text_stems[path.stem] == 1}
        pairs = {i: by_stem.get(i.stem) for i in images if stems[i.stem] == 1}
    found = {image: path for image, path in pairs.items() if path is not None}
    of_json = [path for path in found.values() if path.suffix.lower() == ".json"]
    if of_json and not _captions(of_json[0]):  # facts of other kinds
        found = {i: p for i, p in found.items() if p.suffix.lower() != ".json"}
    return found
