"""`captioner evaluate` and `compare` as a user runs them."""

from __future__ import annotations

import html
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
from programs import Commands, ProgramResult, Programs, Runs

from captioner import Captioner
from captioner.evaluation import calibration
from captioner.evaluation.metrics import quick_scores, score_captions
from captioner.evaluation.results import write_json

METRICS = {"Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr"}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tiny.draw_table(tmp_path / "photos", train=1, val=1, test=6)


def evaluate(commands: Runs, model: Path, table: Path, *options: object) -> ProgramResult:
    given = ("--format", "table", "--root", table, "--checkpoint", model, "--device", "cpu")
    # Without Java, which takes seconds: BLEU and the others are computed in Python.
    return commands.run("captioner", "evaluate", *given, *options, PATH="/nowhere")


def results(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_results_have_the_promised_fields(
    programs: Programs, tiny_model: Path, table: Path, tmp_path: Path
) -> None:
    output = tmp_path / "deep" / "results.json"
    outcome = evaluate(programs, tiny_model, table, "--split", "test", "--output", output)
    assert outcome.code == 0, outcome.stderr
    assert "Traceback" not in outcome.stderr
    found = results(output)
    assert found["metrics"].keys() >= METRICS
    assert found["num_images"] == 6
    assert [set(entry) for entry in found["captions"]] == [{"image_id", "caption"}] * 6
    assert {"tokenizer", "beam_size", "Bleu"} <= found["signature"].keys()
    assert found["signature"]["beam_size"] == 3
    assert "beam size 3, length penalty" in outcome.stderr
    assert found["signature"]["data"] == "table test"
    assert found["metrics"]["METEOR"] is None, "no Java, so not computed, and never 0"
    assert "METEOR: not computed: no Java on PATH" in outcome.stderr
    assert "scored with the Python tokenizer" in outcome.stderr
    assert [i["file_name"] for i in found["images"]] == [f"{n:02d}.jpg" for n in range(2, 8)]
    assert "METEOR   not computed" in outcome.stdout
    assert outcome.stdout.splitlines()[-1] == str(output)

    captioner = Captioner.from_pretrained(tiny_model, device="cpu")
    texts = {n: captioner.caption(table / f"{n:02d}.jpg").text for n in range(2, 8)}
    assert {entry["image_id"]: entry["caption"] for entry in found["captions"]} == texts
    expected = quick_scores(texts, {n: tuple(tiny.photo(n)[1]) for n in range(2, 8)})
    for name, value in expected.items():
        assert found["metrics"][name] == pytest.approx(value)
        assert f"{name:8} {value:.4f}" in outcome.stdout


def test_missing_and_damaged_photos_are_named_and_the_others_scored(
    programs: Programs, tiny_model: Path, table: Path, tmp_path: Path
) -> None:
    (table / "02.jpg").unlink()
    (table / "04.jpg").write_bytes(b"damaged")
    output = tmp_path / "results.json"
    outcome = evaluate(programs, tiny_model, table, "--output", output)
    assert outcome.code == 1
    assert "Traceback" not in outcome.stderr
    assert outcome.stderr.count("02.jpg") == outcome.stderr.count("04.jpg") == 1
    found = results(output)
    assert found["num_images"] == 4
    assert [entry["image_id"] for entry in found["captions"]] == [3, 5, 6, 7]


def test_a_limit_and_a_beam_are_kept_to_and_cider_of_one_photo_is_not_defined(
    commands: Commands, tiny_model: Path, table: Path, tmp_path: Path
) -> None:
    output, report = tmp_path / "results.json", tmp_path / "report.html"
    options = ("--limit", 1, "--beam-size", 1, "--output", output, "--report", report)
    outcome = evaluate(commands, tiny_model, table, *options)
    assert outcome.code == 0, outcome
    found = results(output)
    assert (found["num_images"], found["signature"]["beam_size"]) == (1, 1)
    captioner = Captioner.from_pretrained(tiny_model, device="cpu")
    assert found["captions"][0]["caption"] == captioner.caption(table / "02.jpg", beam_size=1).text
    assert found["metrics"]["CIDEr"] is None
    assert "CIDEr    not defined" in outcome.stdout
    assert "not defined" in report.read_text(encoding="utf-8")


def test_results_hold_grounding_and_statistics_too(
    commands: Commands, tiny_model: Path, table: Path, tmp_path: Path
) -> None:
    output, report = tmp_path / "results.json", tmp_path / "report.html"
    outcome = evaluate(
        commands,
        tiny_model,
        table,
        *("--split", "test", "--output", output, "--train-split", "train", "--faithfulness", 2),
        *("--report", report),
    )
    assert outcome.code == 0, outcome.stderr
    found = results(output)
    page = report.read_text(encoding="utf-8")
    assert page.count('<div class="captioner">') == 6
    for entry in found["captions"]:
        assert html.escape(entry["caption"]) in page
    for value in found["metrics"].values():
        assert value is None or f">{value:.3f}<" in page
    rows = page.count("<tr>") - page.count("<thead><tr>")
    assert page.count('<tr><th scope="row">') == rows > 20, "a screen reader names each row"
    assert "Content-Security-Policy" in page
    assert not re.search(r'(src|href)="(?!data:)', page), "it asks for nothing"
    assert 0 <= found["statistics"]["novel_ratio"] <= 1
    for name, (low, high) in found["intervals"].items():
        assert low <= found["metrics"][name] <= high or found["metrics"][name] == pytest.approx(low)
    assert found["intervals"].keys() == {n for n, v in found["metrics"].items() if v is not None}
    assert "bad ending rate" in outcome.stdout
    attention = found["attention"]
    names = {"frozen", "random_cell", "uniform", "deleted_in_grid", "cell_changes"}
    assert set(attention) == names
    for name, entry in attention.items():
        low, high = entry["interval"]
        assert low <= entry["value"] <= high
        assert ("control" in entry) == name.startswith("deleted")
        assert re.search(rf"{name} +{entry['value']:.3f}", outcome.stdout)
    assert 0 <= attention["cell_changes"]["value"] <= 1


def test_a_model_with_a_calibrator_is_reported_on(
    commands: Commands, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[int] = []
    monkeypatch.setattr(calibration, "matcher_for", lambda *given: learned.append(len(given[1])))
    table = tiny.draw_table(tmp_path / "photos", train=6, val=60, test=6)
    model, output = tmp_path / "model", tmp_path / "results.json"
    shutil.copytree(tiny_model, model)
    options = ["--format", "table", "--root", table, "--device", "cpu", "--right-from", 0.3]
    report = tmp_path / "report.json"
    done = commands.run("captioner", "calibrate", model, *options, "--output", report)
    assert done.code == 0, done.stderr
    assert str(model / "calibrator.json") in done.stdout
    assert json.loads(report.read_text())["all"]["num_images"] == 60
    outcome = evaluate(commands, model, table, "--split", "test", "--output", output)
    assert outcome.code == 0, outcome.stderr
    found = results(output)["calibration"]
    assert (found["num_images"], found["right_from"]) == (6, 0.3)
    assert "expected calibration error" in outcome.stdout
    commands.run("captioner", "calibrate", model, *options, "--train-split", "val")
    assert learned == [6, 0], "from the training photos, and not from its own"
    few = commands.run("captioner", "calibrate", model, *options, "--limit", 5)
    assert "needs at least" in few.sentence()


def test_references_of_photos_held_out_are_no_training_captions(
    commands: Commands, tmp_path: Path
) -> None:
    table, output = tmp_path / "t.csv", tmp_path / "results.json"
    rows = [f"{n}.jpg,dog number {n},train" for n in range(40)]
    table.write_text("\n".join(["image,caption,split", *rows]))
    captions = [{"image_id": f"{n}.jpg", "caption": f"dog number {n}"} for n in range(40)]
    (tmp_path / "c.json").write_text(json.dumps(captions))
    options = ("--results", tmp_path / "c.json", "--split", "val", "--train-split", "train")
    done = commands.run(
        "captioner", "evaluate", "--root", table, *options, "--output", output, PATH="/nowhere"
    )
    assert done.code == 0, done.stderr
    assert results(output)["statistics"]["novel_ratio"] == 1


def coco(root: Path, *, references: int) -> Path:
    """Six drawn photos as COCO's val2017, of which the first so many have captions."""
    folder = root / "val2017"
    folder.mkdir(parents=True)
    images, annotations = [], []
    for number in range(6):
        image, texts = tiny.photo(number)
        name = f"{number + 1:012d}.jpg"
        image.save(folder / name)
        images.append({"id": number + 1, "file_name": name, "width": 640, "height": 480})
        annotations += [
            {"id": 10 * number + n, "image_id": number + 1, "caption": text}
            for n, text in enumerate(texts if number < references else ())
        ]
    (root / "annotations").mkdir()
    content = {"images": images, "annotations": annotations}
    (root / "annotations" / "captions_val2017.json").write_text(json.dumps(content))
    return root


def of_coco(commands: Runs, root: Path, *options: object) -> ProgramResult:
    """Evaluate a model (`--checkpoint`) or a file (`--results`) on val2017."""
    given = ("--format", "coco", "--root", root, "--split", "val2017", "--device", "cpu")
    return commands.run("captioner", "evaluate", *given, *options, PATH="/nowhere")


def test_captions_of_another_model_are_scored_without_their_photos(
    commands: Commands, tiny_model: Path, tmp_path: Path
) -> None:
    root, written = coco(tmp_path / "coco", references=6), tmp_path / "written.json"
    captions, output = tmp_path / "captions.json", tmp_path / "results.json"
    assert of_coco(commands, root, "--checkpoint", tiny_model, "--output", written).code == 0
    shutil.rmtree(root / "val2017")
    expected = results(written)
    captions.write_text(json.dumps(expected["captions"]))
    texts = {f"{e['image_id']:012d}": e["caption"] for e in expected["captions"]}
    named = tmp_path / "named.json"  # as BLIP and others write them
    named.write_text(json.dumps({f"COCO_val2014_{key}.jpg": [text] for key, text in texts.items()}))
    table = tmp_path / "captions.csv"
    table.write_text("image,caption\n" + "".join(f"a/{k}.png,{t}\n" for k, t in texts.items()))
    own = tmp_path / "own.csv"
    own.write_text(table.read_text().replace("image,caption", "bild,text_1"))
    columns = ("--image-column", "Bild", "--caption-column", "text_1")
    for file in (captions, written, named, table, own):
        of_own = columns if file == own else ()
        outcome = of_coco(commands, root, "--results", file, "--output", output, *of_own)
        assert outcome.code == 0, outcome
        found = results(output)
        for part in ("metrics", "captions", "intervals", "images", "statistics"):
            assert found[part] == expected[part], (file, part)
        assert found["signature"]["photos"] == expected["signature"]["photos"]


def test_captions_of_some_photos_are_scored_and_the_rest_is_counted(
    commands: Commands, tmp_path: Path
) -> None:
    root, file = coco(tmp_path / "coco", references=4), tmp_path / "r.json"
    rows = [{"image_id": n, "caption": "a man"} for n in (1, 2, 77, 2)] + [{"image_id": 3}]
    file.write_text(json.dumps(rows))
    outcome = of_coco(commands, root, "--results", file)
    assert outcome.code == 0, outcome
    assert "2 of 4 photos have no caption there, the first is 000000000003.jpg" in outcome.stderr
    assert "1 of 3 captions are of other photos" in outcome.stderr
    assert "2 of 5 entries are left out: they have no caption, or their photo" in outcome.stderr
    assert "num captions" in outcome.stdout


def instances(path: Path, *names: str) -> Path:
    """One person, the whole photo, in photos of these names; half of them without an outline."""
    outline = [[0, 0, 640, 0, 640, 480, 0, 480]]
    content = {
        "categories": [{"id": 1, "name": "person"}],
        "images": [
            {"id": 50 + n, "file_name": name, "width": 640, "height": 480}
            for n, name in enumerate(names)
        ],
        "annotations": [
            {"id": n, "image_id": 50 + n, "category_id": 1, "bbox": [0, 0, 640, 480], "iscrowd": 0}
            | ({"segmentation": outline} if n % 2 else {})
            for n in range(len(names))
        ],
    }
    path.write_text(json.dumps(content))
    return path


def test_objects_are_those_of_the_photos_of_that_name(
    commands: Commands, tiny_model: Path, tmp_path: Path
) -> None:
    root, output = coco(tmp_path / "coco", references=6), tmp_path / "r.json"
    path = root / "annotations" / "captions_val2017.json"
    content = json.loads(path.read_text())
    content["annotations"] = [
        {"id": 2 * n + k, "image_id": n, "caption": text}
        for n in range(1, 7)
        for k, text in enumerate(("...", "a man"))  # the first has no words
    ]
    path.write_text(json.dumps(content))
    names = ["COCO_val2014_000000000003.jpg", "000000000005.jpg", "000000000099.jpg"]
    outcome = of_coco(
        commands,
        root,
        *("--checkpoint", tiny_model, "--output", output),
        *("--objects", instances(tmp_path / "instances.json", *names[:1])),
        instances(tmp_path / "others.json", *names[1:]),
    )
    assert outcome.code == 0, outcome.stderr
    assert "grounding is measured on 2 of the 6 photos" in outcome.stderr
    found = results(output)
    assert found["grounding"]["references"]["num_words"] == 2
    assert found["grounding"]["references"]["correctness"] == pytest.approx(1)


def test_a_report_shows_names_of_photos_and_people_as_text(
    commands: Commands, tiny_model: Path, tmp_path: Path
) -> None:
    table = tiny.draw_table(tmp_path / "photos", train=1, val=1, test=20)
    hostile = "<img src=x onerror=alert(1)>&.jpg"
    (table / "02.jpg").rename(table / hostile)
    path = table / "captions.csv"
    rows = path.read_text().replace("02.jpg", hostile)
    path.write_text(rows.replace("disc", "</script><b>disc</b>"))
    report, output = tmp_path / "report.html", tmp_path / "results.json"
    outcome = evaluate(commands, tiny_model, table, "--report", report, "--output", output)
    assert outcome.code == 0, outcome.stderr
    page = report.read_text(encoding="utf-8")
    for heading in ("Best photos by CIDEr", "Worst photos by CIDEr", "Photos at random"):
        assert heading in page
    assert page.count('<div class="captioner">') == 18
    assert "<b>" not in page
    assert "<img src=x" not in page
    assert html.escape("</script><b>disc</b>") in page
    scores = {i["file_name"]: i["scores"]["CIDEr"] for i in results(output)["images"]}
    for heading, extreme in (("Best", max), ("Worst", min)):
        first = re.search(rf"{heading} photos by CIDEr.*?<h3>(.*?)</h3>", page, re.DOTALL)
        assert scores[html.unescape(first[1])] == extreme(scores.values())


WORDS = "man dog red ball park tree runs sits on the a big old blue near".split()


def write(path: Path, captions: dict[int, str], references: dict[int, list[str]]) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/nowhere")  # no Java, which takes seconds
        scores = score_captions(captions, references)
    write_json(path, scores)
    return path


@pytest.fixture
def references() -> dict[int, list[str]]:
    generator = random.Random(0)
    return {n: [" ".join(generator.choices(WORDS, k=9)) for _ in range(3)] for n in range(40)}


def test_a_better_model_is_distinguished_from_a_worse_one(
    commands: Commands, tmp_path: Path, references: dict[int, list[str]]
) -> None:
    good = {n: texts[0] for n, texts in references.items()}
    poor = {n: " ".join([*text.split()[:5], "tree", "a"]) for n, text in good.items()}
    a = write(tmp_path / "a.json", poor, references)
    b = write(tmp_path / "b.json", good, references)
    outcome = commands.run("captioner", "compare", a, b)
    assert (outcome.code, outcome.stderr) == (0, "")
    rows = {line.split()[0]: line.split() for line in outcome.stdout.splitlines() if line.split()}
    metrics = json.loads(b.read_text())["metrics"]
    assert {"Bleu_1", "Bleu_4", "ROUGE_L", "CIDEr"} <= rows.keys()
    assert "METEOR" not in rows, "not computed, not compared"
    for name in ("Bleu_4", "CIDEr"):
        _, first, second, gap, *_, p = rows[name]
        assert float(second) == pytest.approx(metrics[name], abs=1e-4)
        assert float(gap) == pytest.approx(float(second) - float(first), abs=2e-4)
        assert gap.startswith("+")
        assert float(p) < 0.01


def test_results_that_cannot_be_compared_are_refused_in_one_sentence(
    commands: Commands, tmp_path: Path, references: dict[int, list[str]]
) -> None:
    whole = write(tmp_path / "a.json", {n: t[0] for n, t in references.items()}, references)
    part = {n: texts for n, texts in references.items() if n < 30}
    less = write(tmp_path / "b.json", {n: t[0] for n, t in part.items()}, part)
    old = tmp_path / "old.json"
    write_json(old, {"metrics": {}, "captions": [], "signature": {}})
    for other, said in (
        (less, "10 are in one alone, such as 30"),
        (old, "holds captions without scores; name the references with --root"),
        (tmp_path / "none.json", "cannot be read"),
        (tmp_path, "is a folder without captions"),
    ):
        assert said in commands.run("captioner", "compare", whole, other).sentence()


def test_captions_without_scores_are_scored_against_the_references_first(
    commands: Commands, tmp_path: Path, references: dict[int, list[str]]
) -> None:
    rows = [f"{n}.jpg,{text}" for n, texts in references.items() for text in texts]
    table = tmp_path / "captions.csv"
    table.write_text("\n".join(["image,caption", *rows]))
    good = [{"image_id": f"{n}.jpg", "caption": texts[0]} for n, texts in references.items()]
    poor = [{**row, "caption": row["caption"][:9]} for row in good]
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(poor))
    b.write_text(json.dumps(good))
    options = ["--format", "table", "--root", table]
    outcome = commands.run("captioner", "compare", a, b, *options, PATH="/nowhere")
    assert outcome.code == 0, outcome
    line = next(line for line in outcome.stdout.splitlines() if line.startswith("Bleu_1"))
    _, first, second, *_ = line.split()
    assert float(first) < float(second) == 1
    assert "40 photos, too few to tell two models apart" in outcome.stdout
