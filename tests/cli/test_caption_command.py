"""`captioner caption` and `score` as a user runs them: photos good and bad, pictures, models."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from PIL import Image
from programs import REPOSITORY, Commands, ProgramResult, Programs

from captioner import Captioner
from captioner.cli import output_folder
from captioner.visualization import caption_from_arrays

Run = Callable[..., ProgramResult]


@pytest.fixture
def captioner(tiny_model: Path) -> Captioner:
    return Captioner.from_pretrained(tiny_model, device="cpu")


def by_name(folder: Path) -> list[str]:
    """Names of the files in a folder, without the journal that every output folder gets."""
    return sorted(path.name for path in folder.iterdir() if path.name != "captions.jsonl")


def test_a_photo_is_captioned_on_one_line_without_a_home_or_a_network(
    programs: Programs, tiny_model: Path, photo: Path, tmp_path: Path
) -> None:
    nowhere = str(tmp_path / "no home")
    hidden = {"HOME": nowhere, "TORCH_HOME": nowhere, "HF_HOME": nowhere, "HF_HUB_OFFLINE": "1"}
    options = ("--checkpoint", tiny_model, "--device", "cpu")
    outcome = programs.run("caption.py", photo, *options, cwd=tmp_path, **hidden)
    assert outcome.code == 0
    assert re.fullmatch(rf"{re.escape(str(photo))}: [\w' -]+\n", outcome.stdout)
    assert outcome.stderr == "", "not a word when all is well"
    assert not Path(nowhere).exists()


def test_photos_and_folders_are_captioned_in_order(
    caption: Run, photos: list[Path], photo: Path
) -> None:
    folder = photos[0].parent
    (folder / "notes.txt").write_text("no photo")
    (folder / ".hidden.jpg").write_bytes(b"no photo")
    (folder / "folder.jpg").mkdir()
    outcome = caption("photo.jpg", "photos", photos[1])
    assert outcome.code == 0, outcome.stderr
    named = [line.partition(":")[0] for line in outcome.stdout.splitlines()]
    assert named == ["photo.jpg", "photos/one.jpg", "photos/two.png", str(photos[1])]
    assert outcome.stderr.startswith("skipped files: 1 (.txt); skipped folders: 1 (add --recursive")
    assert caption("photos", "--quiet").stderr == ""


def test_json_has_the_promised_fields_and_the_captions_of_python(
    caption: Run, photos: list[Path], captioner: Captioner
) -> None:
    outcome = caption(photos[0], "--json", *photos[1:])
    assert outcome.code == 0
    lines = outcome.json_lines()
    assert len({line["caption"] for line in lines}) > 1
    for path, line in zip(photos, lines, strict=True):
        promised = {"image", "caption", "words", "log_probs", "end_log_prob", "beta", "confidence"}
        assert line.keys() == promised
        assert line["image"] == str(path)
        assert line["confidence"] is None, "a model without a calibrator"
        assert line["caption"] == " ".join(line["words"])
        found = captioner.caption(path)
        assert line["words"] == found.words
        assert line["log_probs"] == pytest.approx(found.log_probs.tolist(), abs=1e-4)
        assert line["beta"] == pytest.approx(found.beta.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    "settings",
    [{"beam_size": 1}, {"beam_size": 50, "max_words": 2}, {"length_penalty": 3.0}],
    ids=str,
)
def test_the_search_can_be_set(
    caption: Run, photos: list[Path], captioner: Captioner, settings: dict[str, float]
) -> None:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    found = [line["caption"] for line in caption(*photos, "--json", *options).json_lines()]
    assert found == [captioner.caption(path, **settings).text for path in photos]


def test_a_pattern_in_quotes_is_expanded_unless_a_file_has_its_name(
    caption: Run, photos: list[Path], tmp_path: Path
) -> None:
    """The shells of Windows leave patterns to the program."""
    shutil.copy(photos[0], tmp_path / "photo[1].jpg")
    shutil.copy(photos[0], tmp_path / "photo1.jpg")
    outcome = caption("photos/*.*", "photo[1].jpg", "**/tw?.png", "*.gif", "--json")
    images = [line["image"] for line in outcome.json_lines()]
    assert images == ["photos/one.jpg", "photos/two.png", "photo[1].jpg"]
    assert (outcome.code, outcome.stderr) == (1, "*.gif: no such file\n")


def test_names_with_spaces_and_letters_of_any_script_are_kept(
    caption: Run, photo: Path, tmp_path: Path
) -> None:
    names = ["a photo with spaces.jpg", "Größe.JPG", "фото.jpg", "写真.jpg", "-dash.jpg", "🐕.jpg"]
    for name in names:
        shutil.copy(photo, tmp_path / name)
    outcome = caption("--json", "--output", "out", "--", *names)
    assert outcome.code == 0, outcome.stderr
    assert [line["image"] for line in outcome.json_lines()] == names
    assert by_name(tmp_path / "out") == sorted(f"{Path(n).stem}.attention.png" for n in names)


def test_sheets_are_drawn_as_png_under_the_photo_s_name(
    caption: Run, photos: list[Path], tmp_path: Path
) -> None:
    outcome = caption("photos", "--output", "deep/out")
    assert outcome.code == 0, outcome.stderr
    names = ["one.attention.png", "two.attention.png"]
    assert by_name(tmp_path / "deep" / "out") == names
    for name in names:
        with Image.open(tmp_path / "deep" / "out" / name) as sheet:
            assert (sheet.format, sheet.mode) == ("PNG", "RGB")
            assert min(sheet.size) > 200
            assert len(sheet.getcolors(1 << 24)) > 500
        assert f"deep/out/{name}" in outcome.stdout


def test_a_bad_photo_among_good_ones_is_named_once_and_the_others_are_captioned(
    caption: Run, photos: list[Path], tmp_path: Path
) -> None:
    (photos[0].parent / "bad.jpg").write_bytes(photos[0].read_bytes()[:300])
    (photos[0].parent / "text.png").write_text("no photo")
    outcome = caption("photos", "missing.jpg", photos[0], "--json", "--output", "out")
    assert outcome.code == 1
    assert "Traceback" not in outcome.stderr
    named = [line.partition(": ")[0] for line in outcome.stderr.splitlines()]
    assert sorted(named) == ["missing.jpg", "photos/bad.jpg", "photos/text.png"]
    assert "missing.jpg: no such file" in outcome.stderr
    images = [line["image"] for line in outcome.json_lines()]
    assert images == ["photos/one.jpg", "photos/two.png", str(photos[0])]
    assert len(by_name(tmp_path / "out")) == 2


def test_a_folder_without_photos_is_named(caption: Run, photo: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    outcome = caption("empty", photo)
    assert (outcome.code, outcome.stderr) == (1, "empty: the folder holds no photos\n")
    assert len(outcome.stdout.splitlines()) == 1
    assert caption("empty").code == 2


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("https://example.org//dog.jpg", "--allow-urls"), ("index.html", "--write html")],
)
def test_pages_and_addresses_name_what_reads_them(
    caption: Run, photo: Path, tmp_path: Path, name: str, remedy: str
) -> None:
    if "//" not in name:
        (tmp_path / name).write_text("photos/one.jpg")
    outcome = caption(name, photo)
    assert outcome.code == 1
    assert outcome.stderr.startswith(f"{name}: is a")
    assert remedy in outcome.stderr
    assert len(outcome.stdout.splitlines()) == 1


def test_an_address_is_fetched_when_that_is_allowed(
    caption: Run, photos: list[Path], tmp_path: Path
) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        site = f"http://127.0.0.1:{server.server_port}"
        given = (f"{site}/photos/one.jpg?size=2", f"{site}/none.jpg", "--json", "--output", "out")
        outcome = caption(*given, "--allow-urls")
        other = (f"{site}/photos/one.jpg?size=3", "--json", "--output", "out", "--allow-urls")
        (kept_apart,) = caption(*other).json_lines()
        server.shutdown()
    assert outcome.code == 1
    assert f"{site}/none.jpg: cannot be fetched: the site answers 404" in outcome.stderr
    (fetched,) = outcome.json_lines()
    (local,) = caption(photos[0], "--json").json_lines()
    assert fetched["image"] == given[0]
    assert fetched["words"] == local["words"]
    drawn = [*fetched["pictures"], *kept_apart["pictures"]]
    assert by_name(tmp_path / "out") == sorted(Path(path).name for path in set(drawn))
    assert len(set(drawn)) == 2, "a later photo of the same name leaves the first one's picture"


def test_several_captions_are_those_of_python_best_first(
    caption: Run, photo: Path, captioner: Captioner
) -> None:
    (expected,) = captioner.n_best([photo], 7, beam_size=7)
    (line,) = caption(photo, "--num-captions", 7, "--json").json_lines()
    assert [each["caption"] for each in line["captions"]] == [each.text for each in expected]
    assert line["caption"] == line["captions"][0]["caption"]
    for each, python in zip(line["captions"], expected, strict=True):
        assert each["log_prob"] == pytest.approx(python.log_prob, abs=1e-4)
        assert each["words"] == python.words
    text = caption(photo, "--num-captions", 3).stdout.splitlines()
    assert [line[:5] for line in text[1:]] == ["  2. ", "  3. "]
    fewer = caption(photo, "--num-captions", 30, "--max-words", 2)
    count = len(fewer.stdout.splitlines())
    assert count < 30
    assert f"found {count} captions within the limits; a larger --beam-size" in fewer.stderr
    (one,) = caption(photo, "--num-captions", 1, "--min-words", 9, "--json").json_lines()
    assert len(one["captions"]) == 1
    assert len(one["words"]) >= 9


def test_captions_are_sampled_and_a_seed_repeats_them(caption: Run, photos: list[Path]) -> None:
    options = ("--sample", "--num-captions", 3, "--temperature", 2, "--top-p", 0.9, "--json")
    first, again, other = (
        [line["captions"] for line in caption(*photos, *options, "--seed", seed).json_lines()]
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len({each["caption"] for each in first[0]}) > 1


def test_it_runs_as_a_script_and_a_reader_that_goes_away_leaves_no_traceback(
    drawn_photos: Path,
) -> None:
    """With the bundled model, whose graphs spare the import of PyTorch."""
    command = shlex.join([sys.executable, "caption.py", str(drawn_photos), "--json"])
    shell = ["bash", "-c", f"{command} | head -n 1"]
    found = subprocess.run(shell, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert found.stderr == "skipped files: 1 (.csv)\n"
    assert json.loads(found.stdout)["image"] == str(drawn_photos / "00.jpg")


def test_one_command_saves_every_kind(run: Run, photos: list[Path], tmp_path: Path) -> None:
    options = ["--output", "out", "--save", "all", "--json", "--style", "contour"]
    outcome = run("caption", photos[0], *options, "--min-words", 2, "--max-words", 3)
    assert outcome.code == 0, outcome.stderr
    (line,) = outcome.json_lines()
    saved = {path.name for path in (tmp_path / "out").iterdir()}
    told = {Path(path).name for path in line["pictures"]}
    assert saved == told | {"captions.jsonl"}
    kinds = ["attention.png", "attention.pdf", "attention.svg", "attention.gif", "attention.html"]
    kinds += ["attention.npz", "matrix.png", "matrix.pdf", "matrix.svg"]
    assert {f"one.{kind}" for kind in kinds} <= saved
    assert len(saved) == 1 + len(kinds) + len(line["words"])
    with np.load(tmp_path / "out" / "one.attention.npz") as arrays:
        again = caption_from_arrays(dict(arrays)).to_dict()
    assert again == {key: line[key] for key in again}
    with Image.open(tmp_path / "out" / "one.attention.gif") as animation:
        assert animation.n_frames == 1 + len(line["words"])

    words = "--words", "--json", "--max-words", 1
    (shorter,) = run("caption", photos[0], *options[:2], *words).json_lines()
    left = len([*(tmp_path / "out").glob("one.0*")])
    assert left == len(shorter["words"]) < len(line["words"]), "and none of the longer caption"
    # Pictures of an earlier run are not photos.
    for photo in photos:
        photo.rename(tmp_path / "out" / photo.name)
    again_told = run("caption", "out", "--json").json_lines()
    assert [Path(line["image"]).name for line in again_told] == ["one.jpg", "two.png"]


def test_pictures_drawn_by_other_processes_are_the_same(
    run: Run, photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, submitted, submit = [], [], ProcessPoolExecutor.submit

    def counted(pool: ProcessPoolExecutor, *work: Any) -> Any:
        submitted.append(work)
        return submit(pool, *work)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", counted)
    for folder, least in (("apart", 1), ("here", 100)):
        monkeypatch.setattr(output_folder, "PROCESSES_FROM", least)
        assert run("caption", *photos, "--output", folder, "--words", "--max-words", 3).code == 0
        drawn.append({p.name: p.read_bytes() for p in (tmp_path / folder).glob("*.png")})
    assert len(drawn[0]) > 4
    assert drawn[0] == drawn[1]
    assert len(submitted) == len(photos)


def test_one_sheet_has_a_row_a_model(
    commands: Commands, tiny_model: Path, tiny_hard_model: Path, photo: Path, tmp_path: Path
) -> None:
    compare = ["caption.py", photo, "--device", "cpu", "--compare", tiny_model, tiny_hard_model]
    options = ["--output", tmp_path / "out", "--json", "--paths", "3"]
    outcome = commands.run(*compare, *options, cwd=tmp_path)
    assert (outcome.code, outcome.stderr) == (0, "")
    soft, hard = map(json.loads, outcome.stdout.splitlines())
    assert (soft["model"], hard["model"]) == (str(tiny_model), str(tiny_hard_model))
    assert "cells" not in soft
    assert "paths" not in soft
    assert len(hard["cells"]) == len(hard["words"])
    assert [len(path) for path in hard["paths"]] == 3 * [len(hard["words"])]
    assert soft["pictures"] == [str(tmp_path / "out" / "photo.comparison.png")]
    with Image.open(soft["pictures"][0]) as sheet:
        assert sheet.height > 500
    for model, line in ((tiny_model, soft), (tiny_hard_model, hard)):
        assert line["caption"] == Captioner.from_pretrained(model, device="cpu").caption(photo).text
    assert commands.run(*compare, cwd=tmp_path).stdout.splitlines() == [
        str(photo),
        f"  {tiny_model}: {soft['caption']}",
        f"  {tiny_hard_model}: {hard['caption']}",
    ]


def test_hard_attention_follows_at_test(
    commands: Commands, tiny_hard_model: Path, photo: Path
) -> None:
    options = ("--checkpoint", tiny_hard_model, "--at-test", "expectation", "--json")
    outcome = commands.run("caption.py", photo, *options)
    assert outcome.code == 0, outcome.stderr
    assert "cells" not in json.loads(outcome.stdout)


TEXT = "A red disc, on the Table!"


def test_a_caption_is_read_drawn_and_weighed(
    run: Run, captioner: Captioner, photo: Path, tmp_path: Path
) -> None:
    options = ("--output", tmp_path / "out", "--words", "--save", "html,npz", "--json")
    outcome = run("score", photo, TEXT, *options)
    assert outcome.code == 0
    assert outcome.stderr == "read as unknown words: table\n"
    line = json.loads(outcome.stdout)
    assert line["words"] == "a red disc on the table".split()
    expected = captioner.score(photo, TEXT)
    assert line["log_probs"] == pytest.approx(expected.log_probs.tolist(), abs=1e-5)
    assert line["end_log_prob"] == pytest.approx(expected.end_log_prob, abs=1e-5)
    kinds = [Path(path).name.split(".", 2)[2] for path in line["pictures"]]
    assert {"attention.png", "attention.html", "attention.npz", "06-table-unknown.png"} < set(kinds)
    assert len(kinds) == 3 + 6
    with Image.open(tmp_path / "out" / "photo.a-red-disc-on-the-table.attention.png") as sheet:
        assert sheet.width > 500


def test_a_scored_caption_replaces_no_picture_of_another_caption_or_photo(
    run: Run, photo: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other" / photo.name
    other.parent.mkdir()
    tiny.photo(3)[0].save(other)
    options = ("--output", tmp_path / "out", "--json")
    run("caption", photo, *options)
    drawn = tmp_path / "out" / f"{photo.stem}.attention.png"
    sheet = drawn.read_bytes()
    (scored,) = run("score", other, TEXT, *options).json_lines()
    pictures = {scored["pictures"][0]}
    long = "a red disc on a table that is blue and on a field of another"
    for text in (TEXT, "a disc", "a disc", f"{long} red", f"{long} green"):
        (scored,) = run("score", photo, text, *options).json_lines()
        pictures |= {scored["pictures"][0]}
    assert len(pictures) == 5
    assert all(map(os.path.isfile, pictures))
    assert not run("caption", photo, *options, "--resume").json_lines(), "its own is still there"
    assert drawn.read_bytes() == sheet


def test_the_text_says_how_likely_the_whole_is(run: Run, captioner: Captioner, photo: Path) -> None:
    outcome = run("score", photo, "a red disc")
    lines = outcome.stdout.splitlines()
    for line, start, caption in (
        (lines[0], f"{photo}: a red disc", captioner.score(photo, "a red disc")),
        (lines[1], "  the model's own: ", captioner.caption(photo)),
    ):
        assert line.startswith(start)
        total = float(caption.log_probs.sum()) + (caption.end_log_prob or 0)
        a_word = total / (len(caption.words) + 1)
        assert line.endswith(f" (log-probability {total:.2f}, {a_word:.2f} a word)")
    assert outcome.stderr == ""
    as_json = json.loads(run("score", photo, "a red disc", "--json").stdout)
    assert as_json["model_caption"]["log_prob"] == pytest.approx(total, abs=1e-5)
