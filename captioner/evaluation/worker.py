"""Score captions with the metrics that need Java, in a process of its own.

    python -m captioner.evaluation.worker CAPTIONS.json SCORES.jsonl JAVA

reads {"candidates": [...], "references": [[...], ...]} and writes one JSON object as each stage
ends, so that what is done stays done when the process is killed in the middle:

    {"java": version}
    {"scores": {metric: [corpus, [image, ...]]}}
    {"failed": {metric: reason}}

The process is the leader of its own group and ends, with its Java children, when its standard
input closes: the caller holds the other end and never writes to it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

from captioner.evaluation.java_metrics import JavaFailure, java_version, ptb_tokenize
from captioner.evaluation.scorers import metrics, python_scores


def _end_with_the_caller() -> None:
    """Wait until standard input closes, then kill this process and its children."""
    os.read(sys.stdin.fileno(), 1)  # not sys.stdin.read: it would hold a lock at our own exit
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main(captions_file: Path, scores_file: Path, java: str) -> None:
    """Score the captions of a file, and write the scores as each stage ends."""
    captions = json.loads(captions_file.read_text(encoding="utf-8"))
    candidates, references = captions["candidates"], captions["references"]
    # SPICE calls "java" by its name.
    os.environ["PATH"] = os.pathsep.join((str(Path(java).parent), os.environ.get("PATH", "")))
    with scores_file.open("w", encoding="utf-8") as file:

        def report(**line: object) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        java_metrics = metrics(needs_java=True)
        try:
            report(java=java_version(java))
            flat = [*candidates, *(text for texts in references for text in texts)]
            tokens = iter(ptb_tokenize(flat, java))
        except JavaFailure as failure:
            report(failed={name: str(failure) for m in java_metrics.values() for name in m.names})
            return
        candidates = [next(tokens) for _ in candidates]
        references = [[next(tokens) for _ in texts] for texts in references]
        report(scores=python_scores(candidates, references))
        for metric in java_metrics.values():
            try:
                report(scores=metric.compute(candidates, references, java))
            except JavaFailure as failure:
                report(failed=dict.fromkeys(metric.names, str(failure)))


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
