"""BLEU, METEOR, ROUGE-L and CIDEr of captions against references, as the field reports them.

The figures are those of pycocoevalcap (the coco-caption code) with its PTBTokenizer. That tokenizer
and METEOR are Java programs that can hang, so they run in a process of their own with a time
limit. Without Java the other scores are computed with a Python tokenizer, and METEOR is None.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from captioner.data.text_files import has_words
from captioner.errors import DataError
from captioner.evaluation.scorers import (
    MetricTable,
    Scored,
    meteor_language,
    metrics,
    python_scores,
    tokenize,
)

PTB_TOKENIZER = "PTB 3.4.1 via pycocoevalcap"
PYTHON_TOKENIZER = "python (nltk)"
NOT_COMPUTED = "not computed"

ImageId = TypeVar("ImageId", int, str, "int | str")


@dataclass(frozen=True)
class Scores:
    """Scores of a set of captions, and how they were computed.

    Attributes:
        metrics: Bleu_1 to Bleu_4, METEOR, ROUGE_L and CIDEr over all images, as fractions (CIDEr on
            pycocoevalcap's scale, where 10 is the most); SPICE too where its jars are installed.
            None is "not computed"; the signature says why.
        per_image: metric -> image id -> score, of the metrics that were computed. The corpus BLEU
            and METEOR are not the means of these.
        counts: metric -> image id -> statistics, of Bleu_4 and METEOR; the corpus score is a
            function of their sums (intervals.py).
        signature: Scorers and their versions, tokenizer, Java, number of images.
    """

    metrics: dict[str, float | None]
    per_image: dict[str, dict[Any, float]]
    counts: dict[str, dict[Any, list[float]]]
    signature: dict[str, str]


def quick_scores(
    candidates: Mapping[ImageId, str], references: Mapping[ImageId, Sequence[str]]
) -> dict[str, float]:
    """Return the metrics that need no Java, computed in process with the Python tokenizer.

    For validation while training; figures to publish are those of score_captions.

    Raises:
        DataError: As for score_captions.
    """
    _, texts, truths = _align(candidates, references)
    return {name: scored.corpus for name, scored in _with_python_tokenizer(texts, truths).items()}


def score_captions(
    candidates: Mapping[ImageId, str],
    references: Mapping[ImageId, Sequence[str]],
    *,
    time_limit_s: float = 600.0,
    java: str | None = None,
) -> Scores:
    """Score one caption an image against the image's references, by pycocoevalcap.

    Where the Java tokenizer did not work, BLEU, ROUGE-L and CIDEr are computed with the Python one.

    Args:
        candidates: Image id -> caption; an empty caption counts as one without words.
        references: The same ids -> one or more captions.
        time_limit_s: Seconds for the process that runs Java; scores computed by then are kept.
        java: Name or path of the Java program; by default the one on PATH.

    Raises:
        DataError: The ids differ, an image has no reference, there is nothing to score.
    """
    ids, texts, truths = _align(candidates, references)
    table: MetricTable = {}
    failed: dict[str, str] = {}
    java_version = "none"
    java_path = shutil.which(java or "java")
    if java_path is None:
        early_end: str | None = f"no Java at {java}" if java else "no Java on PATH"
    else:
        stages, early_end = _run_worker(texts, truths, java_path, time_limit_s)
        for stage in stages:
            java_version = stage.get("java", java_version)
            table |= {name: Scored(*row) for name, row in stage.get("scores", {}).items()}
            failed |= stage.get("failed", {})

    tokenizer = PTB_TOKENIZER
    if not table:
        table |= _with_python_tokenizer(texts, truths)
        tokenizer = PYTHON_TOKENIZER
    chosen = metrics()
    left_out = sum(map(len, references.values())) - sum(map(len, truths))
    signature = {
        **{name: metric.signature() for name, metric in chosen.items()},
        # such references would only lower the scores
        **({"references_without_words": f"{left_out} left out"} if left_out else {}),
        "tokenizer": tokenizer,
        "java": java_version,
        "num_images": str(len(ids)),
    }
    if tokenizer == PYTHON_TOKENIZER:
        signature["nltk"] = importlib.metadata.version("nltk")
    if meteor_language(truths) == "other":
        signature["METEOR"] += ", -l other (equal words only)"
    names = [name for metric in chosen.values() for name in metric.names]
    figures = {name: table[name].corpus if name in table else None for name in names}
    for name in names:
        if name not in table:
            signature[name] = f"{NOT_COMPUTED}: {failed.get(name, early_end)}"
    per_image = {
        name: dict(zip(ids, table[name].images, strict=True)) for name in names if name in table
    }
    counts = {
        name: dict(zip(ids, scored.counts, strict=True))
        for name, scored in table.items()
        if scored.counts is not None
    }
    return Scores(metrics=figures, per_image=per_image, counts=counts, signature=signature)


def _align(
    candidates: Mapping[ImageId, str], references: Mapping[ImageId, Sequence[str]]
) -> tuple[list[ImageId], list[str], list[list[str]]]:
    """Return ids, captions and references in one order, that of the candidates."""
    if not candidates:
        raise DataError("there is no caption to score; give at least one")
    for what, other, some, rest in (
        ("caption", "references", candidates, references),
        ("reference", "caption", references, candidates),
    ):
        alone = [image_id for image_id in some if image_id not in rest]
        if alone:
            raise DataError(
                f"{len(alone)} of {len(some)} images with a {what} have no {other}, the first is "
                f"{alone[0]!r}; give captions and references for the same image ids"
            )
    ids = list(candidates)
    truths = [list(filter(has_words, references[image_id])) for image_id in ids]
    for image_id, texts in zip(ids, truths, strict=True):
        if not texts:
            found = "references without words" if references[image_id] else "no references"
            raise DataError(
                f"image {image_id!r} has {found}; give at least one, or leave the image out"
            )
    return ids, [candidates[image_id] for image_id in ids], truths


def _with_python_tokenizer(texts: Sequence[str], truths: Sequence[Sequence[str]]) -> MetricTable:
    return python_scores(
        [tokenize(text) for text in texts], [[tokenize(text) for text in row] for row in truths]
    )


def _run_worker(
    texts: Sequence[str], truths: Sequence[Sequence[str]], java: str, time_limit_s: float
) -> tuple[list[dict[str, Any]], str | None]:
    """Run the worker; return the stages that it finished, and why it ended early if it did.

    When this returns or raises, even by an interrupt, no process that it started is left.
    """
    package_root = str(Path(__file__).resolve().parents[2])
    others = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    search_path = os.pathsep.join((package_root, *map(os.path.abspath, others)))
    with tempfile.TemporaryDirectory(prefix="captioner-scores-") as folder:
        captions, scores = Path(folder, "captions.json"), Path(folder, "scores.jsonl")
        arguments = (captions, scores, Path(java).absolute())
        captions.write_text(json.dumps({"candidates": texts, "references": truths}))
        scores.touch()
        # Files, not pipes, for what it writes: a full pipe that nobody reads is a hang.
        with Path(folder, "stderr.txt").open("w+b") as errors:
            worker = subprocess.Popen(
                [sys.executable, "-m", "captioner.evaluation.worker", *map(str, arguments)],
                stdin=subprocess.PIPE,  # closes when we are killed: the sign for it to end
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": search_path},
                cwd=folder,  # Python searches modules here first, and the user's may be like ours
                start_new_session=True,
            )
            try:
                code = worker.wait(time_limit_s)
            except subprocess.TimeoutExpired:
                early_end: str | None = f"not finished within {time_limit_s:g} s"
            else:
                errors.seek(0)
                lines = errors.read().decode(errors="replace").split("\n")
                last = next((line for line in reversed(lines) if line.strip()), "")
                early_end = f"the scoring process ended with code {code}: {last}" if code else None
            finally:
                if worker.returncode != 0:
                    _kill_group(worker)
                if worker.stdin:
                    worker.stdin.close()
        # A line without its line feed was cut by the end of the process.
        finished = scores.read_text().split("\n")[:-1]
    return [json.loads(line) for line in finished], early_end


def _kill_group(worker: subprocess.Popen[bytes]) -> None:
    """Kill the worker and its Java children."""
    if sys.platform == "win32":
        worker.kill()
    else:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself and left no child
            os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
