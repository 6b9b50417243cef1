"""METEOR and the PTB tokenizer, which are Java programs, in a process of their own.

`main` reads {"candidates": [...], "references": [[...], ...]} from standard input and writes one
JSON object a line as each stage ends, so that what is done stays done when the process is killed:

    {"java": version}
    {"scores": {metric: [corpus, [image, ...]]}}
    {"failed": {metric: reason}}
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence

from pycocoevalcap.meteor.meteor import METEOR_JAR, Meteor
from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS, STANFORD_CORENLP_3_4_1_JAR

from captioner.evaluation.metrics import (
    Metric,
    MetricTable,
    Scored,
    clean,
    compute_score,
    metrics,
    package,
    pycocoevalcap_folder,
    python_scores,
)


def main() -> None:
    """Score the captions on standard input with the Java that the first argument names."""
    java = sys.argv[1]
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # for what the scorers print

    def report(**stage: object) -> None:
        print(json.dumps(stage), file=lines, flush=True)

    request = json.loads(sys.stdin.buffer.read())
    candidates, references = request["candidates"], request["references"]
    java_metrics = metrics(needs_java=True).values()
    try:
        report(java=java_version(java))
        flat = [*candidates, *(text for texts in references for text in texts)]
        tokens = iter(ptb_tokenize(flat, java))
    except (OSError, ValueError) as error:
        names = (name for metric in java_metrics for name in metric.names)
        report(failed=dict.fromkeys(names, str(error)))
        return
    candidates = [next(tokens) for _ in candidates]
    references = [[next(tokens) for _ in texts] for texts in references]
    report(scores=python_scores(candidates, references))
    for metric in java_metrics:
        try:
            report(scores=metric.compute(candidates, references, java))
        # A METEOR that has ended or complains gives no number where pycocoevalcap expects one.
        except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
            report(failed=dict.fromkeys(metric.names, str(error)))


def java_version(java: str) -> str:
    """Return the version of the Java at this path, such as "17.0.15"."""
    output = _run([java, "-version"]).stderr.decode(errors="replace")
    match = re.search(r'version "([^"]+)"', output)
    if match is None:
        raise ValueError(f"{java} -version gave no version: {output.strip()}")
    return match[1]


def ptb_tokenize(texts: Sequence[str], java: str) -> list[str]:
    """Tokenise captions with pycocoevalcap's PTBTokenizer and its list of punctuation.

    Called through pipes: pycocoevalcap's own wrapper writes a file into its installed folder, which
    may be read-only, and loses the last captions when they are empty.
    """
    jar = pycocoevalcap_folder() / "tokenizer" / STANFORD_CORENLP_3_4_1_JAR
    command = [java, "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer"]
    options = ["-preserveLines", "-lowerCase", "-encoding", "UTF-8"]
    # The closing line feed keeps a last caption that is empty.
    source = "".join(clean(text) + "\n" for text in texts).encode()
    output = _run(command + options, source).stdout.decode()
    lines = output.removesuffix("\n").split("\n")
    if len(lines) != len(texts):
        raise ValueError(f"PTBTokenizer gave {len(lines)} lines for {len(texts)} captions")
    removed = set(PUNCTUATIONS)
    return [" ".join(w for w in line.rstrip().split(" ") if w not in removed) for line in lines]


def _run(command: list[str], source: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(command, input=source, capture_output=True, check=False)
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ValueError(f"{command[0]} ended with code {done.returncode}: {words}")
    return done


class _Meteor(Meteor):
    """pycocoevalcap's METEOR with a given Java, UTF-8, and a standard error that cannot fill up.

    Its own constructor leaves stderr in a pipe that nothing reads. Its lock stays taken when
    scoring fails, and its destructor would wait for it for ever: hence the reentrant lock.
    """

    def __init__(self, java: str) -> None:
        command = [java, "-Dfile.encoding=UTF-8", "-jar", "-Xmx2G", METEOR_JAR]
        self.counts: list[list[float]] = []
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as METEOR is)
        self.lock = threading.RLock()
        self.meteor_p = subprocess.Popen(
            [*command, "-", "-", "-stdio", "-l", "en", "-norm"],
            cwd=pycocoevalcap_folder() / "meteor",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )

    def _stat(self, hypothesis_str: str, reference_list: Sequence[str]) -> str:
        """Score one caption as pycocoevalcap does, and keep the numbers of the answer."""
        line: str = super()._stat(hypothesis_str, reference_list)
        counts = [float(number) for number in line.split()]
        words, matched, chunks = counts[0:2], counts[21:23], counts[20]
        if matched == words and chunks == 1:
            counts[20] = 0.0  # METEOR neither penalises nor adds up the chunk of a perfect match
        self.counts.append(counts)
        return line


def meteor_scores(
    candidates: Sequence[str], references: Sequence[Sequence[str]], java: str
) -> MetricTable:
    """Return METEOR 1.5 for English (Denkowski and Lavie 2014) of tokenised captions."""
    meteor = _Meteor(java)
    try:
        corpus, images = compute_score(meteor, candidates, references)
    except (ValueError, OSError, IndexError) as error:
        meteor.errors.seek(0)
        words = meteor.errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        raise ValueError(f"METEOR failed: {words or error}") from error
    return {"METEOR": Scored(corpus, images, meteor.counts)}


METEOR = Metric(("METEOR",), meteor_scores, lambda: f"METEOR 1.5 via {package()}", needs_java=True)
