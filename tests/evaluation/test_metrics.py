"""Scores against pycocoevalcap's own, nltk's and plain loops; and what happens without Java."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocoevalcap.cider.cider_scorer import CiderScorer
from pycocoevalcap.meteor import meteor

from captioner.evaluation import metrics
from captioner.evaluation.metrics import CiderD, quick_scores, score_captions

NGRAM_METRICS = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr")
CANDIDATES = {1: "a black dog runs in the snow", 2: "two men sit on a red bench"}
REFERENCES = {
    1: ["a dog runs in the deep snow", "the black dog plays in the snow"],
    2: ["two old men sit on a bench", "men on a red bench"],
}


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")


def per_image(scores: dict[str, Any], metric: str) -> dict[Any, float]:
    found = {image["image_id"]: image["scores"].get(metric) for image in scores["images"]}
    return {key: value for key, value in found.items() if value is not None}


@pytest.fixture(scope="module")
def coco_example(shared_data: Path) -> tuple[dict[int, str], dict[int, list[str]]]:
    """The 126 generated captions that come with coco-caption, and the references of val2017."""
    folder = shared_data / "metrics"
    results = json.loads((folder / "captions_val2017_results.json").read_text())
    candidates = {row["image_id"]: row["caption"] for row in results}
    references: dict[int, list[str]] = {image_id: [] for image_id in candidates}
    for row in json.loads((folder / "captions_val2017.json").read_text())["annotations"]:
        if row["image_id"] in references:
            references[row["image_id"]].append(row["caption"])
    assert len(candidates) == 126
    return candidates, references


# What COCOEvalCap of pycocoevalcap 1.2 itself gave, with Java 17. The captions hold what tokenizers
# differ in: hyphens, apostrophes, brackets, dots, capitals, accents.
GOLDEN_CAPTIONS = {
    "a black dog runs in the snow": [
        "a dog runs in the deep snow",
        "The black dog plays in the snow.",
    ],
    "two men aren't sitting on a red-painted bench .": [
        "two old men sit on a bench",
        "Men don't sit on a red bench!",
        "a couple of men sitting on benches",
    ],
    "a girl's kite (blue) flies over the beach": [
        "a child flies a blue kite",
        "girl with a kite at the sea-side; it is windy",
    ],
    "a": ["a café at night ..."],
    "a man in a T-shirt rides a bike, a bike": [
        "a man rides his bicycle",
        "the man in the t-shirt rides a bike",
    ],
    "people walking up the stairs of an old building": [
        "people climb the steps of a building",
        "a crowd walks upstairs",
    ],
}
GOLDEN_SCORES = {
    "Bleu_1": 0.6595744680710729,
    "Bleu_2": 0.43937021493518535,
    "Bleu_3": 0.29930197061103386,
    "Bleu_4": 0.2039385173610845,
    "METEOR": 0.38235988749521754,
    "ROUGE_L": 0.5591399297784782,
    "CIDEr": 1.5661409259388634,
}
GOLDEN_METEOR = [0.518761998, 0.480046477, 0.330856862, 0.057553957, 0.456258903, 0.283050186]
GOLDEN_CIDER = [4.100550993, 1.592413716, 0.748810464, 0.0, 2.454567238, 0.500503146]


@pytest.mark.parametrize("has_java", [pytest.param(True, marks=pytest.mark.java), False])
def test_scores_of_invented_captions_are_those_that_pycocoevalcap_gave(
    has_java: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed, folder = Path(meteor.__file__).parent, tmp_path / "a blank"
    folder.mkdir()
    shutil.copy(installed / meteor.METEOR_JAR, folder)
    (folder / "data").symlink_to(installed / "data")
    monkeypatch.setattr(meteor, "__file__", str(folder / "meteor.py"))
    if not has_java:
        monkeypatch.setenv("PATH", "/nonexistent")
    candidates = dict(enumerate(GOLDEN_CAPTIONS))
    scores = score_captions(candidates, dict(enumerate(GOLDEN_CAPTIONS.values())))
    expected: dict[str, float | None] = dict(GOLDEN_SCORES)
    if has_java:
        assert scores["signature"]["tokenizer"] == "PTB 3.4.1 via pycocoevalcap"
        assert list(per_image(scores, "METEOR").values()) == pytest.approx(GOLDEN_METEOR, abs=1e-6)
    else:
        assert scores["signature"]["tokenizer"] == "python (nltk)"
        expected["METEOR"] = None
    assert scores["metrics"] == pytest.approx(expected, abs=1e-6)
    assert list(per_image(scores, "CIDEr").values()) == pytest.approx(GOLDEN_CIDER, abs=1e-6)


def test_quick_scores_of_real_captions_are_near_the_published_ones(
    coco_example: tuple[dict[int, str], dict[int, list[str]]],
) -> None:
    candidates, references = coco_example
    scores = quick_scores(candidates, references)
    assert list(scores) == list(NGRAM_METRICS)
    # The figures of COCOEvalCap, with the Java tokenizer.
    published = (0.58548, 0.40474, 0.28251, 0.19827, 0.40798, 0.62772)
    assert list(scores.values()) == pytest.approx(published, abs=1e-3)


@pytest.mark.usefixtures("no_java")
def test_without_java_meteor_is_none_and_the_signature_says_so() -> None:
    scores = score_captions(CANDIDATES, REFERENCES)
    assert list(scores["metrics"]) == list(GOLDEN_SCORES)
    assert scores["metrics"]["METEOR"] is None
    assert not per_image(scores, "METEOR")
    expected = {"METEOR": "not computed: no Java on PATH", "java": "none"}
    expected |= {"tokenizer": "python (nltk)", "num_images": "2", "Bleu": "pycocoevalcap 1.2"}
    assert expected.items() <= scores["signature"].items()
    quick = quick_scores(CANDIDATES, REFERENCES)
    assert {name: scores["metrics"][name] for name in NGRAM_METRICS} == quick
    assert all(quick[name] > 0 for name in ("Bleu_4", "ROUGE_L", "CIDEr"))


@pytest.mark.usefixtures("no_java")
def test_empty_captions_score_nothing_and_stop_nothing() -> None:
    candidates = {1: CANDIDATES[1], 2: "", 3: " \n", 4: "..."}
    references = dict.fromkeys(candidates, REFERENCES[1])
    scores = score_captions(candidates, references)
    for name in NGRAM_METRICS:
        for key in (2, 3, 4):
            assert per_image(scores, name)[key] == pytest.approx(0, abs=1e-6), (name, key)
    assert per_image(scores, "Bleu_1")[1] > 0.5
    # Three of four images without words: the corpus BLEU pays for their length.
    whole = quick_scores({1: CANDIDATES[1], 2: CANDIDATES[2]}, REFERENCES)
    assert 0 < quick_scores(candidates, references)["Bleu_1"] < whole["Bleu_1"] / 4
    nothing = quick_scores({1: "", 2: ""}, REFERENCES)
    assert nothing == pytest.approx(dict.fromkeys(NGRAM_METRICS, 0.0), abs=1e-6)


@pytest.mark.usefixtures("no_java")
def test_cider_of_a_single_image_is_not_defined() -> None:
    one, truth = {1: CANDIDATES[1]}, {1: REFERENCES[1]}
    scores = score_captions(one, truth)
    assert scores["metrics"]["CIDEr"] is None
    assert not per_image(scores, "CIDEr")
    assert scores["signature"]["CIDEr"].startswith("not defined: ")
    assert scores["metrics"]["Bleu_1"] is not None
    assert "CIDEr" not in quick_scores(one, truth)


def test_text_that_differs_in_white_space_case_or_punctuation_scores_the_same() -> None:
    messy = {1: "A black\ndog  runs\u2028in the |||snow!\r\n", 2: 'Two men "sit", on a red bench .'}
    assert quick_scores(messy, REFERENCES) == quick_scores(CANDIDATES, REFERENCES)


@pytest.mark.slow
@pytest.mark.java
def test_meteor_takes_empty_captions_line_breaks_and_its_own_separator(
    capfd: pytest.CaptureFixture[str],
) -> None:
    references = {key: ["пёс бежит | сюда", "||| тот\nпёс ||| бежит"] for key in range(1, 9)}
    candidates = {
        1: "тот пёс бежит",
        2: "тот\nпёс\u2028бежит\r",
        3: "тот ||| пёс бежит",
        4: "",
        5: "...",
        6: "der Hund läuft 犬 \udcff \x00",
        7: "пёс бежит | сюда",
        8: "",
    }
    scores = score_captions(candidates, references)
    assert capfd.readouterr() == ("", "")
    assert scores["signature"]["tokenizer"] == metrics.PTB_TOKENIZER
    meteor = per_image(scores, "METEOR")
    assert meteor[1] == meteor[2] == meteor[3] > 0.5
    assert meteor[4] == meteor[5] == meteor[6] == meteor[8] == 0
    assert meteor[7] > 0.9
    assert 0 < scores["metrics"]["METEOR"] < meteor[1]


@pytest.mark.java
def test_the_java_tokenizer_equals_pycocoevalcaps_wrapper(
    coco_example: tuple[dict[int, str], dict[int, list[str]]],
) -> None:
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    from captioner.evaluation.metrics import Java, ptb_tokenize, tokenize

    texts = [text for texts in coco_example[1].values() for text in texts]
    texts += ['He said: "no" (twice)...', "T.V.s & cafés -- 3/4 full; don't", "", "x"]
    tokens = ptb_tokenize(texts, Java())
    assert tokens == PTBTokenizer().tokenize({0: [{"caption": text} for text in texts]})[0]
    assert tokens[-4:-2] == ["he said no -lrb- twice -rrb-", "t.v.s & cafés 3/4 full do n't"]
    python = [tokenize(text) for text in texts]
    agreeing = sum(ours == theirs for ours, theirs in zip(python, tokens, strict=True))
    assert agreeing / len(texts) > 0.99
    assert python[-4:] == tokens[-4:]
    odd = ["\x0b a", "b\x85c", "", "\x1c", "d\u2029e", "\udcff", "\x00 f", "\n\n", ""]
    assert len(ptb_tokenize(odd, Java())) == len(odd)


VERSION = """-version) echo 'openjdk version "99.1" 2030-01-01' >&2; exit;;"""
TOKENIZER = "*PTBTokenizer*) exec tr A-Z a-z;;"


def false_java(folder: Path, *cases: str) -> None:
    """A shell script in Java's place: a case for each of its uses.

    Its cases may write the number of their process to "$pid".
    """
    path = folder / "java"
    path.write_text(
        f"#!/bin/sh\npid='{folder / 'pid'}'\n"
        'case "$*" in\n' + "\n".join(cases) + "\n*) exit 77;;\nesac\n"
    )
    path.chmod(0o755)


HANG = 'echo $$ > "$pid.new"; mv "$pid.new" "$pid"; exec sleep 600;;'


@pytest.mark.parametrize(
    ("cases", "reason", "tokenizer"),
    [
        ([f"*) {HANG}"], "not finished within 1 s", metrics.PYTHON_TOKENIZER),
        ([VERSION, TOKENIZER, f"*) {HANG}"], "not finished within 1 s", metrics.PTB_TOKENIZER),
        (["*) echo 'no memory' >&2; exit 3;;"], "code 3: no memory", metrics.PYTHON_TOKENIZER),
        (
            [VERSION, TOKENIZER, "*meteor*) echo 'no memory for METEOR' >&2; exit 1;;"],
            "no memory for METEOR",
            metrics.PTB_TOKENIZER,
        ),
        ([VERSION, TOKENIZER, "*meteor*) echo 1 2;;"], "no counts", metrics.PTB_TOKENIZER),
    ],
)
def test_a_java_that_hangs_or_fails_costs_only_what_it_computes(
    tmp_path: Path, cases: list[str], reason: str, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    false_java(tmp_path, *cases)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    hangs = HANG in cases[-1]
    start = time.monotonic()
    scores = score_captions(CANDIDATES, REFERENCES, time_limit_s=1 if hangs else 60)
    assert time.monotonic() - start < 60
    if hangs:
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)
    assert scores["metrics"]["METEOR"] is None
    assert scores["signature"]["METEOR"].startswith("not computed: ")
    assert reason in scores["signature"]["METEOR"]
    assert scores["signature"]["tokenizer"] == tokenizer
    assert scores["signature"]["java"] == ("99.1" if VERSION in cases else "none")
    expected = quick_scores(CANDIDATES, REFERENCES)
    assert {name: scores["metrics"][name] for name in NGRAM_METRICS} == pytest.approx(expected)


@pytest.mark.usefixtures("no_java")
def test_references_without_words_lower_no_score() -> None:
    captions = {1: "a dog runs", 2: "a cat"}
    references = {1: ["a dog runs fast", "the dog"], 2: ["a cat sleeps"]}
    with_empty = {1: [*references[1], "", "..."], 2: ["?", *references[2]]}
    clean, found = (score_captions(captions, refs) for refs in (references, with_empty))
    assert found["metrics"] == clean["metrics"]
    assert found["signature"]["references_without_words"] == "3 left out"
    assert "references_without_words" not in clean["signature"]


WORDS = [f"w{number}" for number in range(30)]


def made_up(seed: int, photos: int = 40) -> tuple[list[list[list[str]]], list[list[str]]]:
    """References of each photo, and one caption, often cut from a reference."""
    rng = random.Random(seed)

    def caption() -> list[str]:
        return [rng.choice(WORDS) for _ in range(rng.randint(1, 14))]

    references = [[caption() for _ in range(rng.randint(1, 5))] for _ in range(photos)]
    captions = [
        caption() if rng.random() < 0.5 else rng.choice(own)[: rng.randint(1, 9)]
        for own in references
    ]
    return references, captions


def by_coco_caption(references: list[list[list[str]]], captions: list[list[str]]) -> np.ndarray:
    scorer = CiderScorer(n=4, sigma=6.0)
    for caption, own in zip(captions, references, strict=True):
        scorer += (" ".join(caption), [" ".join(reference) for reference in own])
    return np.array(scorer.compute_score()[1])


def test_it_is_coco_captions_cider() -> None:
    references, captions = made_up(0)
    own = CiderD(references).scores(range(len(captions)), captions)
    np.testing.assert_allclose(own, by_coco_caption(references, captions), atol=1e-12)
    assert own.std() > 0.1
    np.testing.assert_array_equal(CiderD(references).scores([0, 3], [[], ["new", "words"]]), 0)


def test_several_captions_of_a_photo_in_any_order_are_scored_as_alone() -> None:
    references, captions = made_up(7)
    reward = CiderD(references)
    rng = np.random.default_rng(0)
    photos = rng.integers(0, 5, 30).tolist()
    mixed = [captions[int(rng.integers(len(captions)))] for _ in photos]
    alone = [reward.scores([p], [c])[0] for p, c in zip(photos, mixed, strict=True)]
    np.testing.assert_allclose(reward.scores(photos, mixed), alone, atol=1e-12)
