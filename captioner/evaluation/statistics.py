"""Statistics of a set of captions besides the scores: their words, and bias about people."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from captioner.evaluation.metrics import tokenize

# Words that no complete caption ends in; the list is that of reports on self-critical training.
BAD_ENDINGS = frozenset(
    "a an the in for at of with before after on upon near to is are am and or by from that".split()
)

Counts = dict[str, dict[str, dict[str, int]]]

# Of the bias about people, in English captions.
_GENDERS = {
    "man": "man men boy boys guy guys gentleman gentlemen male males father dad son grandfather",
    "woman": "woman women girl girls lady ladies female females mother mom mum daughter "
    "grandmother",
}
_AGES = {
    "adult": "man men woman women adult adults lady ladies guy guys gentleman gentlemen father "
    "mother dad mom mum grandfather grandmother",
    "child": "boy boys girl girls child children kid kids baby babies toddler toddlers infant",
}
_COLOUR = "black|white|red|blue|green|yellow|orange|pink|purple|brown|gr[ae]y|tan"
_COLOURS = rf"(?:{_COLOUR})(?: (?:and )?(?:{_COLOUR}))*"
_CLOTHES = "|".join(
    "shirt shirts t-shirt tshirt jacket jackets coat coats dress dresses skirt skirts pants shorts "
    "jeans sweater sweatshirt hoodie vest vests suit suits outfit outfits uniform uniforms jersey "
    "jerseys top hat hats cap helmet tie gloves shoes boots scarf swimsuit bikini trunks clothes "
    "clothing robe robes tank".split()
)
_DRESSED = re.compile(
    rf"(?<![\w-])(?:(?:in|wearing) ({_COLOURS})|({_COLOURS}) (?:{_CLOTHES}))(?![\w-])"
)
_WORD = re.compile(r"[a-z]+(?:-[a-z]+)*")


def corpus_statistics(
    captions: Sequence[str], training: Iterable[str] | None = None
) -> dict[str, float | None]:
    """Count how varied and well formed captions are, in lower-cased words without punctuation.

    Returns:
        num_captions; distinct_ratio, different captions / captions; novel_ratio, those that are
        none of the `training` captions (None without these); vocabulary_used, different words;
        mean_length_words, sd_length_words; bad_ending_rate, captions that end in BAD_ENDINGS;
        repeated_N_gram_rate, captions that say N words twice (of N 1, twice in a row).
    """
    tokenised = [tokenize(caption).split() for caption in captions]
    count = len(tokenised)
    lengths = np.array([len(caption) for caption in tokenised])
    novel: float | None = None
    if training is not None:
        known = {tokenize(caption) for caption in training}
        novel = sum(" ".join(caption) not in known for caption in tokenised) / count
    return {
        "num_captions": count,
        "distinct_ratio": len(set(map(" ".join, tokenised))) / count,
        "novel_ratio": novel,
        "vocabulary_used": len({word for caption in tokenised for word in caption}),
        "mean_length_words": float(lengths.mean()),
        "sd_length_words": float(lengths.std()),
        "bad_ending_rate": sum(c[-1] in BAD_ENDINGS for c in tokenised if c) / count,
        **{
            f"repeated_{n}_gram_rate": sum(_repeats(c, n) for c in tokenised) / count
            for n in (1, 2, 3)
        },
    }


def _repeats(words: Sequence[str], n: int) -> bool:
    grams = list(zip(*(words[start:] for start in range(n)), strict=False))
    if n == 1:
        return any(a == b for a, b in itertools.pairwise(grams))
    return len(set(grams)) < len(grams)


def _named(groups: Mapping[str, str]) -> Callable[[list[str]], set[str]]:
    """Return a function from the words of a caption to the groups that it names."""
    words_of = {group: frozenset(words.split()) for group, words in groups.items()}
    return lambda words: {group for group, known in words_of.items() if not known.isdisjoint(words)}


def colours_of_clothes(words: Sequence[str]) -> set[str]:
    """Return the colours that stand before a garment, or after "in" or "wearing" without one.

    >>> sorted(colours_of_clothes("a man in red and a boy in a blue and white shirt".split()))
    ['blue', 'red', 'white']
    >>> colours_of_clothes("a black dog on a white boat".split())
    set()
    """
    colours = re.findall(_COLOUR, " ".join(map("".join, _DRESSED.findall(" ".join(words)))))
    return {colour.replace("grey", "gray") for colour in colours}


CATEGORIES: dict[str, Callable[[list[str]], set[str]]] = {
    "gender": _named(_GENDERS),
    "age": _named(_AGES),
    "colour of clothes": colours_of_clothes,
}


def bias_counts(captions: Mapping[Any, str], references: Mapping[Any, Sequence[str]]) -> Counts:
    """Count right, wrong and silent captions by image id.

    Counted are images whose references agree: at least two (or the only one) name the group, and
    of genders and ages none names another one. A caption is right when it names that group (of
    genders and ages no other), wrong when it names only groups that no reference names, and silent
    otherwise.

    Returns:
        For each category and group: `photos` whose references agree on it, and how many captions
        of these are `right`, `wrong` and `silent`.
    """
    counts: Counts = {category: {} for category in CATEGORIES}
    for image_id, caption in captions.items():
        texts = [_WORD.findall(text.lower()) for text in references[image_id]]
        words = _WORD.findall(caption.lower())
        for category, named in CATEGORIES.items():
            several = category == "colour of clothes"  # a person can have several
            found = [named(text) for text in texts]
            everything = set().union(*found)
            said = named(words)
            for group in sorted(everything):
                agree = sum(group in each for each in found) >= min(2, len(texts))
                if not agree or (len(everything) > 1 and not several):
                    continue
                none = {"photos": 0, "right": 0, "wrong": 0, "silent": 0}
                row = counts[category].setdefault(group, none)
                row["photos"] += 1
                if group in said and (several or len(said) == 1):
                    row["right"] += 1
                else:
                    row["wrong" if said and said.isdisjoint(everything) else "silent"] += 1
    return {
        category: dict(sorted(groups.items(), key=lambda item: -item[1]["photos"]))
        for category, groups in counts.items()
        if groups
    }
