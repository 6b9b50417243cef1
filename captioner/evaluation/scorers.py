"""The metrics of coco-caption that need no Java: BLEU, ROUGE-L and CIDEr, and a Python tokenizer.

A metric is a `Metric` and one line in METRICS of captioner/registry.py. Everything here runs in
process and prints nothing. A tokenised caption is one string, its words lower-cased and separated
by single spaces, without punctuation: the form that pycocoevalcap's own tokenizer gives to its
scorers.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from captioner.data.tokenizer import begins_unspaced
from captioner.errors import DataError
from captioner.registry import METRICS


class Scored(NamedTuple):
    """A metric of a set of captions.

    Attributes:
        counts: For Bleu_4 and METEOR, whose score over many images is not the mean of the images'
            scores: the statistics of each image; the score is a function of their sums
            (intervals.py).
    """

    corpus: float
    images: list[float]
    counts: list[list[float]] | None = None


MetricTable: TypeAlias = dict[str, Scored]


@dataclass(frozen=True)
class Metric:
    """A way to score captions against references; an entry of METRICS in captioner/registry.py.

    Attributes:
        compute: Function of N tokenised captions and the tokenised references of each that returns
            a `Scored` for every name. With `needs_java` it also gets the path of a Java, is run in
            a process of its own, and raises JavaFailure where it cannot be computed.
        signature: Returns what computes it, with its version.
        available: Returns whether what it needs is installed; otherwise it is left out.
    """

    names: tuple[str, ...]
    compute: Callable[..., MetricTable]
    signature: Callable[[], str]
    needs_java: bool = False
    available: Callable[[], bool] = lambda: True


def metrics(*, needs_java: bool | None = None) -> dict[str, Metric]:
    """Return the available metrics by name: all, those that need Java, or those that do not."""
    found: dict[str, Metric] = {name: METRICS[name] for name in METRICS}
    return {
        name: metric
        for name, metric in found.items()
        if metric.available() and needs_java in (None, metric.needs_java)
    }


def clean(text: str) -> str:
    """Make a caption one line that any of the scorers can take.

    Characters of scripts without spaces between words become words of their own, because the
    tokenizers would take a whole sentence for a word. Line breaks and other white space become
    single spaces. "|||" separates the fields of METEOR's protocol, so it becomes a space; half of a
    surrogate pair, which UTF-8 cannot hold, becomes "?".
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


def meteor_language(references: Sequence[Sequence[str]]) -> str:
    """Return METEOR's language for references: `en`, or `other` where most letters are not Latin.

    METEOR's stems and paraphrases are of English; in `other` languages it matches equal words only.
    """
    letters = [each for texts in references for text in texts for each in text if each.isalpha()]
    latin = sum(each < "\u0250" for each in letters)
    return "en" if 2 * latin >= len(letters) else "other"


def python_scores(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> MetricTable:
    """Return the figures of all metrics that need no Java, of tokenised captions.

    Raises:
        DataError: No reference has a word, so that there is nothing to compare with.
    """
    if not any(any(texts) for texts in references):
        raise DataError(
            "no reference caption has a word in it, so there is nothing to score against; "
            "check the data set's captions"
        )
    table: MetricTable = {}
    for metric in metrics(needs_java=False).values():
        table |= metric.compute(candidates, references)
    return table


def bleu_scores(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> MetricTable:
    """Return Bleu_1 to Bleu_4 (Papineni et al. 2002), with the length of the closest reference."""
    from pycocoevalcap.bleu.bleu_scorer import BleuScorer

    bleu = BleuScorer(n=4)
    for text, truths in zip(candidates, references, strict=True):
        bleu += (text, list(truths))
    corpus, images = bleu.compute_score(option="closest", verbose=0)
    counts = [_bleu_counts(found) for found in bleu.ctest]
    return {
        f"Bleu_{n + 1}": Scored(corpus[n], images[n], counts if n == 3 else None) for n in range(4)
    }


def _bleu_counts(found: dict[str, Any]) -> list[float]:
    """Return words, words of the closest reference, n-grams of n 1 to 4, and those matched."""
    closest = min((abs(length - found["testlen"]), length) for length in found["reflen"])[1]
    return [found["testlen"], closest, *found["guess"], *found["correct"]]


def rouge_scores(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> MetricTable:
    """Return ROUGE-L (Lin 2004) with beta 1.2."""
    from pycocoevalcap.rouge.rouge import Rouge

    return {"ROUGE_L": _scored(Rouge(), candidates, references)}


def cider_scores(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> MetricTable:
    """Return CIDEr-D (Vedantam et al. 2015), sigma 6, document frequencies of these references."""
    from pycocoevalcap.cider.cider import Cider

    return {"CIDEr": _scored(Cider(), candidates, references)}


def _scored(scorer: Any, candidates: Sequence[str], references: Sequence[Sequence[str]]) -> Scored:
    corpus, images = compute_score(scorer, candidates, references)
    return Scored(float(corpus), [float(score) for score in images])


def compute_score(
    scorer: Any, candidates: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[float, list[Any]]:
    """Return what a scorer of pycocoevalcap gives for the corpus and for each image."""
    truths = {index: list(texts) for index, texts in enumerate(references)}
    found = {index: [text] for index, text in enumerate(candidates)}
    return scorer.compute_score(truths, found)


def pycocoevalcap_folder() -> Path:
    """Return the folder of the installed pycocoevalcap, where its jars lie."""
    spec = importlib.util.find_spec("pycocoevalcap.eval")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pycocoevalcap.eval has no file to find the jars by")
    return Path(spec.origin).parent


def package() -> str:
    """Return pycocoevalcap with its version, for signatures."""
    return f"pycocoevalcap {importlib.metadata.version('pycocoevalcap')}"


BLEU = Metric(("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4"), bleu_scores, package)
ROUGE_L = Metric(("ROUGE_L",), rouge_scores, package)
CIDER = Metric(
    ("CIDEr",),
    cider_scores,
    lambda: f"{package()} (CIDEr-D, document frequencies of these references)",
)
