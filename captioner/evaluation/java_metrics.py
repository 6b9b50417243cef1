"""METEOR and the PTB tokenizer: Java programs, which can hang and so have a time limit."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import IO

from pycocoevalcap.meteor.meteor import METEOR_JAR, Meteor
from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS, STANFORD_CORENLP_3_4_1_JAR

from captioner.evaluation.metrics import (
    Metric,
    MetricTable,
    Scored,
    clean,
    compute_score,
    package,
    pycocoevalcap_folder,
)


class JavaError(Exception):
    """There is no Java, or a program of it failed or did not end in time."""


class Java:
    """A Java whose programs all have to end within a time limit.

    Args:
        name: Name or path of the Java program; None is the one on PATH.
    """

    def __init__(self, name: str | None = None, time_limit_s: float = 600.0) -> None:
        path = shutil.which(name or "java")
        if path is None:
            raise JavaError(f"no Java at {name}" if name else "no Java on PATH")
        self.path = path
        self.deadline = time.monotonic() + time_limit_s
        self.late = JavaError(f"not finished within {time_limit_s:g} s")

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit; 0 after it."""
        return max(0.0, self.deadline - time.monotonic())

    def run(self, *arguments: str, source: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a program to its end."""
        command = [self.path, *arguments]
        limit = self.seconds_left
        try:
            done = subprocess.run(command, input=source, capture_output=True, timeout=limit)
        except subprocess.TimeoutExpired:
            raise self.late from None
        except OSError as error:
            raise JavaError(str(error)) from error
        if done.returncode:
            words = last_line(done.stderr)
            raise JavaError(f"{self.path} ended with code {done.returncode}: {words}")
        return done

    def version(self) -> str:
        """Return the version, such as "17.0.15"."""
        output = self.run("-version").stderr.decode(errors="replace")
        match = re.search(r'version "([^"]+)"', output)
        if match is None:
            raise JavaError(f"{self.path} -version gave no version: {output.strip()}")
        return match[1]


def last_line(output: bytes) -> str:
    return output.decode(errors="replace").strip().rpartition("\n")[2]


def ptb_tokenize(texts: Sequence[str], java: Java) -> list[str]:
    """Tokenise captions with pycocoevalcap's PTBTokenizer and its list of punctuation.

    Called through pipes: pycocoevalcap's own wrapper writes a file into its installed folder, which
    may be read-only, and loses the last captions when they are empty.
    """
    jar = pycocoevalcap_folder() / "tokenizer" / STANFORD_CORENLP_3_4_1_JAR
    options = ["-preserveLines", "-lowerCase", "-encoding", "UTF-8"]
    # The closing line feed keeps a last caption that is empty.
    source = "".join(clean(text) + "\n" for text in texts).encode()
    program = ("-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer")
    output = java.run(*program, *options, source=source).stdout.decode()
    lines = output.removesuffix("\n").split("\n")
    if len(lines) != len(texts):
        raise JavaError(f"PTBTokenizer gave {len(lines)} lines for {len(texts)} captions")
    removed = set(PUNCTUATIONS)
    return [" ".join(w for w in line.rstrip().split(" ") if w not in removed) for line in lines]


class _Meteor(Meteor):
    """pycocoevalcap's METEOR with a given Java, UTF-8, and a standard error that cannot fill up.

    Its own constructor leaves stderr in a pipe that nothing reads. Its lock stays taken when
    scoring fails, and its destructor would wait for it for ever: hence the reentrant lock.
    """

    def __init__(self, java: Java, errors: IO[bytes]) -> None:
        command = [java.path, "-Dfile.encoding=UTF-8", "-jar", "-Xmx2G", METEOR_JAR]
        self.counts: list[list[float]] = []
        self.lock = threading.RLock()
        self.meteor_p = subprocess.Popen(
            [*command, "-", "-", "-stdio", "-l", "en", "-norm"],
            cwd=pycocoevalcap_folder() / "meteor",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
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
    candidates: Sequence[str], references: Sequence[Sequence[str]], java: Java
) -> MetricTable:
    """Return METEOR 1.5 for English (Denkowski and Lavie 2014) of tokenised captions."""
    with tempfile.TemporaryFile() as errors:
        meteor = _Meteor(java, errors)
        process = meteor.meteor_p
        timer = threading.Timer(java.seconds_left, process.kill)
        timer.start()
        try:
            corpus, images = compute_score(meteor, candidates, references)
        # A METEOR that has ended or complains gives no number where pycocoevalcap expects one.
        except (ValueError, OSError, IndexError) as error:
            if not java.seconds_left:
                raise java.late from None
            process.kill()
            process.wait()  # so that it has said why
            errors.seek(0)
            raise JavaError(f"METEOR failed: {last_line(errors.read()) or error}") from error
        finally:
            timer.cancel()
            process.kill()
            process.communicate()
    return {"METEOR": Scored(corpus, images, meteor.counts)}


METEOR = Metric(("METEOR",), meteor_scores, lambda: f"METEOR 1.5 via {package()}", needs_java=True)
