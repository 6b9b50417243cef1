"""METEOR and the PTB tokenizer: Java programs, which can hang and so have a time limit."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pycocoevalcap.meteor import meteor as pycocoevalcap_meteor
from pycocoevalcap.tokenizer import ptbtokenizer

from captioner.evaluation.intervals import meteor
from captioner.evaluation.metrics import PACKAGE, Metric, MetricTable, Scored, clean


class JavaError(Exception):
    """There is no Java, or a program of it failed or did not end in time."""


class Java:
    """The Java on PATH, whose programs all have to end within a time limit."""

    def __init__(self, time_limit_s: float = 600.0) -> None:
        path = shutil.which("java")
        if path is None:
            raise JavaError("no Java on PATH")
        self.path, self.time_limit_s = path, time_limit_s
        self.deadline = time.monotonic() + time_limit_s
        found = re.search('version "([^"]+)"', self.run("-version").stderr)
        self.version = found[1] if found else "unknown"  # such as 17.0.15

    def run(self, *arguments: str, source: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program to its end, with `source` as its standard input."""
        try:
            done = subprocess.run(
                [self.path, *arguments],
                input=source,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=max(0.0, self.deadline - time.monotonic()),
            )
        except subprocess.TimeoutExpired:
            raise JavaError(f"not finished within {self.time_limit_s:g} s") from None
        if done.returncode:
            reason = done.stderr.strip().rpartition("\n")[2]
            raise JavaError(f"{self.path} ended with code {done.returncode}: {reason}")
        return done


def ptb_tokenize(texts: Sequence[str], java: Java) -> list[str]:
    """Tokenise captions with pycocoevalcap's PTBTokenizer and its list of punctuation.

    pycocoevalcap's own wrapper writes a file into its installed folder, which may be read-only, and
    loses the last captions when they are empty.
    """
    jar = Path(ptbtokenizer.__file__).with_name(ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR)
    program = ("-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer")
    options = ("-preserveLines", "-lowerCase", "-encoding", "UTF-8")
    # The closing line feed keeps a last caption that is empty.
    source = "".join(clean(text) + "\n" for text in texts)
    lines = java.run(*program, *options, source=source).stdout.removesuffix("\n").split("\n")
    if len(lines) != len(texts):
        raise JavaError(f"PTBTokenizer gave {len(lines)} lines for {len(texts)} captions")
    removed = set(ptbtokenizer.PUNCTUATIONS)
    return [" ".join(w for w in line.rstrip().split(" ") if w not in removed) for line in lines]


def meteor_scores(
    candidates: Sequence[str], references: Sequence[Sequence[str]], java: Java
) -> MetricTable:
    """Return METEOR 1.5 for English (Denkowski and Lavie 2014) of tokenised captions.

    The program counts what matches; `intervals.meteor` makes scores of the counts. pycocoevalcap's
    own wrapper hangs when the program says much on standard error, which it does not read.
    """
    jar = Path(pycocoevalcap_meteor.__file__).with_name(pycocoevalcap_meteor.METEOR_JAR)
    program = ("-Dfile.encoding=UTF-8", "-Xmx2G", "-jar", str(jar))
    pairs = zip(references, candidates, strict=True)
    source = "".join(" ||| ".join(("SCORE", *truths, text)) + "\n" for truths, text in pairs)
    done = java.run(*program, "-", "-", "-stdio", "-l", "en", "-norm", source=source)
    try:
        rows = [line.split() for line in done.stdout.splitlines()]
        counts = np.array(rows, float).reshape(len(candidates), 23)
    except ValueError as error:
        raise JavaError(f"METEOR gave no counts of the words: {error}") from error
    # METEOR neither penalises nor adds up the chunk of a perfect match.
    perfect = (counts[:, 0:2] == counts[:, 21:23]).all(1) & (counts[:, 20] == 1)
    counts[perfect, 20] = 0
    scores = meteor(counts).tolist()
    return {"METEOR": Scored(float(meteor(counts.sum(0))), scores, counts.tolist())}


METEOR = Metric(("METEOR",), meteor_scores, f"METEOR 1.5 via {PACKAGE}", needs_java=True)
