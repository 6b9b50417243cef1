"""The metrics that are Java programs, METEOR and SPICE, and the PTB tokenizer.

They can hang, so they run in the process of worker.py only.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
from collections.abc import Sequence

from pycocoevalcap.meteor.meteor import METEOR_JAR, Meteor
from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS, STANFORD_CORENLP_3_4_1_JAR

from captioner.evaluation.scorers import (
    Metric,
    MetricTable,
    Scored,
    clean,
    compute_score,
    meteor_language,
    package,
    pycocoevalcap_folder,
)


class JavaFailure(Exception):
    """A Java program that did not do its work; the message is the reason in one phrase."""


def java_version(java: str) -> str:
    """Return the version of the Java at this path, such as "17.0.15".

    Raises:
        JavaFailure: It does not start or names no version.
    """
    output = _run([java, "-version"]).stderr.decode(errors="replace")
    match = re.search(r'version "([^"]+)"', output)
    if match is None:
        raise JavaFailure(f"{java} -version gave no version: {_last_line(output)}")
    return match[1]


def ptb_tokenize(texts: Sequence[str], java: str) -> list[str]:
    """Tokenise captions with pycocoevalcap's PTBTokenizer and its list of punctuation.

    Called through pipes: pycocoevalcap's own wrapper writes a file into its installed folder, which
    may be read-only, and loses the last captions when they are empty.

    Raises:
        JavaFailure: The tokenizer failed or did not give one line a caption.
    """
    jar = pycocoevalcap_folder() / "tokenizer" / STANFORD_CORENLP_3_4_1_JAR
    command = [java, "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer"]
    options = ["-preserveLines", "-lowerCase", "-encoding", "UTF-8"]
    # The closing line feed keeps a last caption that is empty.
    source = "".join(clean(text) + "\n" for text in texts).encode()
    output = _run(command + options, source).stdout.decode()
    lines = output.removesuffix("\n").split("\n")
    if len(lines) != len(texts):
        raise JavaFailure(f"PTBTokenizer gave {len(lines)} lines for {len(texts)} captions")
    removed = set(PUNCTUATIONS)
    return [" ".join(w for w in line.rstrip().split(" ") if w not in removed) for line in lines]


class _Meteor(Meteor):
    """pycocoevalcap's METEOR with a given Java, UTF-8, and a standard error that cannot fill up.

    Its own constructor leaves stderr in a pipe that nothing reads, and its lock is not released
    when scoring fails, so that its destructor would wait for ever: hence the reentrant lock.
    """

    def __init__(self, java: str, language: str) -> None:
        command = [java, "-Dfile.encoding=UTF-8", "-jar", "-Xmx2G", METEOR_JAR]
        # It has no rules to normalise other languages; our captions are tokenised in any case.
        normalise = ["-norm"] if language == "en" else []
        self.counts: list[list[float]] = []
        self.language = language
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as METEOR is)
        self.lock = threading.RLock()
        self.meteor_p = subprocess.Popen(
            [*command, "-", "-", "-stdio", "-l", language, *normalise],
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
        # A 24th number tells `intervals.meteor` that other parameters hold.
        self.counts.append(counts if self.language == "en" else [*counts, 1.0])
        return line


def meteor_scores(
    candidates: Sequence[str], references: Sequence[Sequence[str]], java: str
) -> MetricTable:
    """Return METEOR 1.5 (Denkowski and Lavie 2014) of tokenised captions, by `meteor_language`.

    Raises:
        JavaFailure: METEOR ended early or answered with something other than scores.
    """
    meteor = _Meteor(java, meteor_language(references))
    try:
        corpus, images = compute_score(meteor, candidates, references)
    except (ValueError, OSError, IndexError) as error:  # no number where METEOR died or complained
        meteor.errors.seek(0)
        reason = _last_line(meteor.errors.read().decode(errors="replace")) or _end(meteor) or error
        raise JavaFailure(f"METEOR failed: {reason}") from error
    return {"METEOR": Scored(corpus, images, meteor.counts)}


def _end(meteor: _Meteor) -> str:
    """Return how the process of METEOR ended, if it did."""
    try:
        code = meteor.meteor_p.wait(1)
    except subprocess.TimeoutExpired:
        return ""
    return f"its process was ended by signal {-code}" if code < 0 else f"ended with code {code}"


def spice_scores(
    candidates: Sequence[str], references: Sequence[Sequence[str]], java: str
) -> MetricTable:
    """Return SPICE (Anderson et al. 2016): F-score over all tuples, of tokenised captions.

    Raises:
        JavaFailure: SPICE ended early or could not write its working files.
    """
    del java  # SPICE calls "java" by its name, which worker.py puts on the path
    from pycocoevalcap.spice.spice import Spice

    try:
        corpus, images = compute_score(Spice(), candidates, references)
    except (subprocess.CalledProcessError, ValueError, OSError) as error:
        raise JavaFailure(f"SPICE failed: {error}") from error
    return {"SPICE": Scored(float(corpus), [float(image["All"]["f"]) for image in images])}


def _run(command: list[str], source: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a program with `source` as standard input; return its result or raise JavaFailure."""
    try:
        return subprocess.run(command, input=source, capture_output=True, check=True)
    except OSError as error:
        raise JavaFailure(f"{command[0]} does not start ({error.strerror})") from error
    except subprocess.CalledProcessError as error:
        last = _last_line(error.stderr.decode(errors="replace"))
        raise JavaFailure(f"{command[0]} ended with code {error.returncode}: {last}") from error


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def spice_is_installed() -> bool:
    """Return whether the jars of SPICE, which pycocoevalcap does not ship, are in its folder."""
    jars = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
    return all((pycocoevalcap_folder() / "spice" / "lib" / jar).is_file() for jar in jars)


METEOR = Metric(
    ("METEOR",),
    meteor_scores,
    lambda: f"METEOR 1.5 via {package()}",
    needs_java=True,
)
SPICE = Metric(
    ("SPICE",),
    spice_scores,
    lambda: f"SPICE 1.0 via {package()}",
    needs_java=True,
    available=spice_is_installed,
)
