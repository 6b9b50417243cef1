"""BLEU, METEOR, ROUGE-L and CIDEr of captions against references, as the field reports them.

The figures are those of pycocoevalcap (the coco-caption code).
"""

from __future__ import annotations

import itertools
import math
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from captioner.data.checks import has_words
from captioner.data.vocabulary import begins_unspaced
from captioner.evaluation.intervals import meteor
from captioner.registry import METRICS

PTB_TOKENIZER = "PTB 3.4.1 via pycocoevalcap"
PYTHON_TOKENIZER = "python (nltk)"
PACKAGE = f"pycocoevalcap {version('pycocoevalcap')}"


class Scored(NamedTuple):
    """A metric of a set of captions.

    Bleu_4 and METEOR have counts, the statistics of each image: the score over many images is a
    function of their sums (intervals.py), not the mean of the images' scores.
    """

    corpus: float
    images: list[float]
    counts: list[list[float]] | None = None


MetricTable: TypeAlias = dict[str, Scored]
Captions: TypeAlias = Mapping[Any, str]  # by image id
References: TypeAlias = Mapping[Any, Sequence[str]]  # by image id, one or more captions of each


@dataclass(frozen=True)
class Metric:
    """A way to score captions against references; an entry of METRICS in captioner/registry.py.

    Attributes:
        compute: Function of N tokenised captions and the tokenised references of each that returns
            a `Scored` for every name. A tokenised caption is one string, lower-cased, without
            punctuation. With `needs_java` it also gets a `Java`.
        signature: Program that computes it, with its version.
    """

    names: tuple[str, ...]
    compute: Callable[..., MetricTable]
    signature: str = PACKAGE
    needs_java: bool = False


def quick_scores(candidates: Captions, references: References) -> dict[str, float]:
    """Return the metrics that need no Java, computed with the Python tokenizer.

    For validation while training; figures to publish are those of score_captions. CIDEr of a single
    image is not defined and left out.
    """
    _, texts, truths = _align(candidates, references)
    table = python_scores(list(map(tokenize, texts)), [list(map(tokenize, row)) for row in truths])
    return {name: scored.corpus for name, scored in table.items() if name != "CIDEr" or texts[1:]}


def score_captions(
    candidates: Captions, references: References, *, time_limit_s: float = 600.0
) -> dict[str, Any]:
    """Score one caption an image against the image's references, by pycocoevalcap.

    Its tokenizer and METEOR are Java programs. Where the tokenizer does not work, BLEU, ROUGE-L and
    CIDEr are computed with a Python one.

    Args:
        candidates: Image id -> caption; an empty caption counts as one without words.
        references: The same ids -> one or more captions of each.
        time_limit_s: Seconds for Java; scores computed by then are kept.

    Returns:
        Parts of results.json. `metrics`: Bleu_1 to Bleu_4, METEOR, ROUGE_L and CIDEr over all
        images, as fractions (CIDEr up to 10); None is "not computed" or "not defined", and the
        signature says why. `images`: each one's `image_id`, and by metric its `scores` and
        `counts`. `signature`: scorers and their versions, tokenizer, Java, number of images.
    """
    ids, texts, truths = _align(candidates, references)
    flat = [*texts, *itertools.chain(*truths)]
    signature = {name: metric.signature for name, metric in METRICS.items()}
    signature |= {"tokenizer": PTB_TOKENIZER, "java": "none", "num_images": str(len(ids))}
    failure: JavaError | None = None
    try:
        program = Java(time_limit_s)
        signature["java"] = program.version
        tokens = iter(ptb_tokenize(flat, program))
    except JavaError as error:
        failure = error
        signature |= {"tokenizer": PYTHON_TOKENIZER, "nltk": version("nltk")}
        tokens = map(tokenize, flat)
    words = [next(tokens) for _ in ids], [[next(tokens) for _ in row] for row in truths]
    table = python_scores(*words)
    for metric in METRICS.values():
        if metric.needs_java:
            try:
                if failure:
                    raise failure
                table |= metric.compute(*words, program)
            except JavaError as error:
                signature |= dict.fromkeys(metric.names, f"not computed: {error}")
    if left_out := sum(map(len, references.values())) - sum(map(len, truths)):
        signature["references_without_words"] = f"{left_out} left out"  # they would lower scores
    if len(ids) == 1:
        del table["CIDEr"]
        signature["CIDEr"] = "not defined: its document frequencies need at least two photos"

    names = [name for metric in METRICS.values() for name in metric.names]
    images = [
        {
            "image_id": image_id,
            "scores": {name: table[name].images[row] for name in names if name in table},
            "counts": {n: scored.counts[row] for n, scored in table.items() if scored.counts},
        }
        for row, image_id in enumerate(ids)
    ]
    whole = {name: table[name].corpus if name in table else None for name in names}
    return {"metrics": whole, "images": images, "signature": signature}


def _align(
    candidates: Captions, references: References
) -> tuple[list[Any], list[str], list[list[str]]]:
    """Return ids, captions and references in one order, that of the candidates."""
    truths = {image_id: list(filter(has_words, references[image_id])) for image_id in candidates}
    return list(candidates), list(candidates.values()), list(truths.values())


def clean(text: str) -> str:
    """Make a caption one line that any of the scorers can take.

    Characters of scripts without spaces become words of their own, because the tokenizers would
    take a whole sentence for a word. "|||" separates the fields of METEOR's protocol, so it becomes
    a space; half of a surrogate pair, which UTF-8 cannot hold, becomes "?".
    """
    text = text.encode("utf-8", "replace").decode("utf-8")
    if not text.isascii():
        text = "".join(f" {each}" if begins_unspaced(each) else each for each in text)
    return " ".join(text.replace("|||", " ").split())


@lru_cache(maxsize=1 << 16)  # validation brings the same references back at every epoch
def tokenize(text: str) -> str:
    """Tokenise a caption with nltk's Treebank tokenizer, as near to PTBTokenizer as Python gets.

    Lower-cased, without the punctuation that pycocoevalcap's PTBTokenizer removes. On 90,000
    captions of COCO and Flickr the two agree on 99.86 %; they differ in full stops inside a line,
    abbreviations and HTML entities.
    """
    from nltk.tokenize.treebank import TreebankWordTokenizer
    from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS

    words = TreebankWordTokenizer().tokenize(clean(text), convert_parentheses=True)
    # Lower-cased first, as PTBTokenizer does, so that "-lrb-" stays though "-LRB-" is in its list.
    return " ".join(word for word in map(str.lower, words) if word not in PUNCTUATIONS)


def python_scores(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> MetricTable:
    """Return the figures of all metrics that need no Java, of tokenised captions."""
    table: MetricTable = {}
    for metric in METRICS.values():
        if not metric.needs_java:
            table |= metric.compute(candidates, references)
    return table


def bleu_scores(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> MetricTable:
    """Return Bleu_1 to Bleu_4 (Papineni et al. 2002), with the length of the closest reference."""
    from pycocoevalcap.bleu.bleu_scorer import BleuScorer

    bleu = BleuScorer(n=4)
    for text, truths in zip(candidates, references, strict=True):
        bleu += (text, list(truths))
    corpus, images = bleu.compute_score(option="closest", verbose=0)
    counts = []  # words, words of the closest reference, n-grams of n 1 to 4, those matched
    for found in bleu.ctest:
        closest = min((abs(length - found["testlen"]), length) for length in found["reflen"])[1]
        counts.append([found["testlen"], closest, *found["guess"], *found["correct"]])
    return {
        f"Bleu_{n + 1}": Scored(corpus[n], images[n], counts if n == 3 else None) for n in range(4)
    }


def _scores_of(
    scorer: str, name: str, candidates: Sequence[str], references: Sequence[Sequence[str]]
) -> MetricTable:
    """Return what a scorer of pycocoevalcap, `module:class`, computes under this name."""
    truths = {index: list(texts) for index, texts in enumerate(references)}
    found = {index: [text] for index, text in enumerate(candidates)}
    corpus, images = resolve_name(f"pycocoevalcap.{scorer}")().compute_score(truths, found)
    return {name: Scored(float(corpus), list(map(float, images)))}


class JavaError(Exception):
    """There is no Java, or a program of it failed or did not end in time."""


class Java:
    """The Java on PATH, whose programs can hang and so share a time limit."""

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
    from pycocoevalcap.tokenizer import ptbtokenizer

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
    from pycocoevalcap.meteor import meteor as pycocoevalcap_meteor

    jar = Path(pycocoevalcap_meteor.__file__).with_name(pycocoevalcap_meteor.METEOR_JAR)
    program = ("-Dfile.encoding=UTF-8", "-Xmx2G", "-jar", str(jar))
    pairs = zip(references, candidates, strict=True)
    source = "".join(" ||| ".join(("SCORE", *truths, text)) + "\n" for truths, text in pairs)
    # Named, because METEOR does not find them by itself in a folder with a blank in its name.
    paraphrases = str(jar.parent / "data" / "paraphrase-en.gz")
    options = ("-stdio", "-l", "en", "-norm", "-a", paraphrases)
    done = java.run(*program, "-", "-", *options, source=source)
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


BLEU = Metric(("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4"), bleu_scores)
METEOR = Metric(("METEOR",), meteor_scores, f"METEOR 1.5 via {PACKAGE}", needs_java=True)
# ROUGE-L (Lin 2004) has beta 1.2, CIDEr-D (Vedantam et al. 2015) has sigma 6.
ROUGE_L = Metric(("ROUGE_L",), partial(_scores_of, "rouge.rouge:Rouge", "ROUGE_L"))
CIDER = Metric(
    ("CIDEr",),
    partial(_scores_of, "cider.cider:Cider", "CIDEr"),
    f"{PACKAGE} (CIDEr-D, document frequencies of these references)",
)


MAX_N = 4
SIGMA = 6.0


class CiderD:
    """CIDEr-D (Vedantam et al., 2015, section 8), as coco-caption computes it.

    Args:
        references: For each image its reference captions, as sequences of tokens.
        corpus: Captions of each image from which document frequencies are counted, one document an
            image; None counts those of the references.
    """

    def __init__(
        self,
        references: Sequence[Sequence[Sequence[str]]],
        corpus: Sequence[Sequence[Sequence[str]]] | None = None,
    ) -> None:
        self.references = references
        corpus = references if corpus is None else corpus
        self.frequency: Counter[tuple[str, ...]] = Counter()
        for image in corpus:
            self.frequency.update({gram for caption in image for gram in _grams(caption)})
        self.log_images = math.log(max(1, len(corpus)))

    def scores(self, images: Sequence[int], captions: Sequence[Sequence[str]]) -> np.ndarray:
        """Return CIDEr-D, float64 [N] from 0 to 10, of captions of the images of these indices."""
        result = np.zeros(len(captions))
        rows_of: dict[int, list[int]] = {}
        for row, image in enumerate(images):
            rows_of.setdefault(image, []).append(row)
        for image, rows in rows_of.items():
            result[rows] = self._pairwise([captions[row] for row in rows], image).mean(1)
        return result

    def _pairwise(self, captions: Sequence[Sequence[str]], image: int) -> np.ndarray:
        """Return CIDEr-D [captions, references] of captions against each reference of an image."""
        counts = [_grams(caption) for caption in [*captions, *self.references[image]]]
        distinct = dict.fromkeys(itertools.chain(*counts))
        columns = {gram: column for column, gram in enumerate(distinct)}
        idf = [self.log_images - math.log(max(1.0, self.frequency[gram])) for gram in columns]
        order = np.array([len(gram) for gram in columns])
        vectors = np.zeros((len(counts), len(columns)))
        for row, grams in enumerate(counts):
            vectors[row, [columns[gram] for gram in grams]] = list(grams.values())
        bigrams = vectors[:, order == 2].sum(1)  # coco-caption measures lengths in bigrams
        vectors *= idf
        written = len(captions)
        penalty = np.exp(-((bigrams[:written, None] - bigrams[written:]) ** 2) / (2 * SIGMA**2))
        total = np.zeros_like(penalty)
        for n in range(1, MAX_N + 1):
            a, b = np.split(vectors[:, order == n], [written])
            clipped = np.minimum(a[:, None], b[None])  # [captions, references, n-grams]
            norms = np.sqrt((a**2).sum(1))[:, None] * np.sqrt((b**2).sum(1))
            dots = np.einsum("crg,rg->cr", clipped, b)
            total += np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0)
        return 10.0 * total * penalty / MAX_N


def _grams(caption: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Count how often each n-gram of one to four tokens occurs."""
    return Counter(
        tuple(caption[first : first + n])
        for n in range(1, MAX_N + 1)
        for first in range(len(caption) - n + 1)
    )
