"""What a command cannot do is one sentence and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import os
import shlex
import socket
from pathlib import Path

import pytest
import tiny
from programs import Commands

# MODEL is the tiny model, and stands in a folder with photo.jpg and run.yaml, a recipe.
CAPTION = "caption photo.jpg --checkpoint MODEL --device cpu"
SCORE = "score --checkpoint MODEL --device cpu"
EVALUATE = "evaluate --format table --checkpoint MODEL --device cpu"
TRAIN = "train --config run.yaml"
SERVE = "serve --port 0 --device cpu"
REFUSED = {
    "caption": "PHOTO",
    "batch a.jpg b.jpg --output c": "put quotes around a pattern",
    "check-data . --contact-sheet x.gif": "x.gif does not end in .jpg or .png",
    "batch a --output b --ray-address auto": "needs --engine ray",
    "batch . --output damaged": "damaged/settings.json is damaged or of another program",
    "batch . --output theme": "theme/settings.json is damaged or of another program",
    "batch . --output others": "others/parts is damaged or of another program, so nothing",
    f"{CAPTION} --beam-size 0": "'0' is not a whole number from 1 to 100",
    f"{CAPTION} --min-confidence 0.5": "has no calibrator",
    f"{CAPTION} --resume": "needs --output",
    f"{CAPTION} --temperature 2": "needs --sample",
    f"{CAPTION} --sample --beam-size 3": "is not for --sample",
    f"{CAPTION} --num-captions 3 --beam-size 2": "at most --beam-size, which is 2",
    f"{CAPTION} --device banana": "banana",
    "caption photo.jpg --model no_such_model": "there is no model 'no_such_model'",
    f"{CAPTION} --output new/out --device cuda:99": "cuda:99",
    f"{CAPTION} --output run.yaml": "run.yaml is a file, not a folder",
    f"{CAPTION} --output new/out --layer 3": "there is no layer 3: the highest of this model is 1",
    f"{CAPTION} --at-test sample": "needs a model with hard attention",
    f"{CAPTION} --save png": "argument --save: needs --output",
    f"{CAPTION} --output ''": "'' is not the name of a folder",
    f"{CAPTION} --style light": "argument --style: needs --output",
    f"{CAPTION} --output out --save png,jpg": "'jpg' is none of png, pdf",
    "caption photo.jpg --output out --save gif --compare soft hard": "gif shows one model",
    f"{CAPTION} --output out --opacity 2": "'2' is not a number from 0 to 1",
    f"{CAPTION} --write csv": "csv needs --output",
    f"{CAPTION} --write html": "needs pages",
    f"{CAPTION} --overwrite": "needs --write txt or xmp or csv or html",
    f"{SCORE} photo.jpg ?!": "has no words",
    f"{SCORE} photo.jpg a dog --output out --save png pdf": "pdf; put quotes around a pattern, and",
    f"{SCORE} nothing.jpg 'a red disc'": "nothing.jpg: ",
    f"{EVALUATE} --root . --split x": "'x'",
    f"{EVALUATE} --root 'no such folder'": "no such folder",
    f"{EVALUATE} --root . --format coco": "no data set of format coco",
    f"{EVALUATE} --root . --results photos.csv": "--checkpoint",
    f"{EVALUATE} --root . --report r.pdf": "r.pdf does not end in .html",
    f"{EVALUATE} --root . --output damaged": "is a folder; name a file in it",
    "calibrate soft --root .": "captioner export soft DIR makes a copy",
    "export soft --format onnx": "captioner export soft DIR makes a copy",
    "export MODEL MODEL": "already exists",
    "export MODEL small --beam-size 0": "decoding.beam_size",
    "average MODEL MODEL MODEL": "already exists",
    "plot nowhere": "name a run",
    "train my.csv": "the data by --data.root",
    f"{TRAIN} --optim.lr fast": "optim.lr",
    f"{TRAIN} --data.root=": "data.root: is empty",
    "train --config 'no such recipe.yaml'": "no such recipe.yaml",
    "train --config flickr8k_sofd": "flickr8k_soft",
    "train --config families/dod": "one of families/concat, families/cosine, families/dot,",
    "train --config flickr8k_soft --data.root none": "none",
    f"{TRAIN} --quiet --encoder.backbone no_such_network": "encoder.backbone",
    f"{TRAIN} --resume": "run",
    f"{TRAIN} --quiet --encoder.self_attention_layers 1 --encoder.project_dim 510 --encoder.self_attention_heads 2": "a multiple of 4",
    f"{SERVE} --host 0.0.0.0 --checkpoint MODEL": "give a token with --token",
    f"{SERVE} --checkpoint none": "there is no model",
    f"{SERVE} --allow-origin example.org": "is no origin, such as https:",
    f"{SERVE} --checkpoint MODEL --checkpoint MODEL": "two models have the name 'tiny'",
    **dict.fromkeys(
        (
            "caption a.jpg --output result.png",
            "score a.jpg dog --output result.pdf",
            "export soft model.onnx",
            "finetune x.csv --output model.pth",
        ),
        "names a file, but a folder is meant",
    ),
    **dict.fromkeys(
        (
            "finetune photos.csv --data.root . --output new",
            "finetune photos.csv --data.sources [] --output new",
            "finetune --root . --output new",
        ),
        "give DATA alone",
    ),
    "finetune photos.csv --output new --train.output other": "did you mean --output?",
    "finetune photos.csv --output new --train.start_from hard": "did you mean --from?",
}

# Files of other programs in folders that are given as the output of captioner batch.
FOREIGN = {
    "damaged/settings.json": "{",
    "theme/settings.json": '{"theme": "dark"}',
    "others/parts/000000.parquet": "",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.draw_table(tmp_path_factory.mktemp("refused") / "photos")
    tiny.photo(1)[0].save(folder / "photo.jpg")
    (folder / "run.yaml").write_text(f"train: {{output: run}}\ndata: {{root: {folder}}}\n")
    for name, content in FOREIGN.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize(("typed", "fact"), REFUSED.items(), ids=list(REFUSED))
def test_what_cannot_be_done_is_one_sentence(
    commands: Commands, tiny_model: Path, folder: Path, typed: str, fact: str
) -> None:
    words = [str(tiny_model) if word == "MODEL" else word for word in shlex.split(typed)]
    before = set(os.listdir(folder))
    outcome = commands.run("captioner", *words, cwd=folder)
    assert fact in outcome.sentence()
    assert outcome.stdout == ""
    assert set(os.listdir(folder)) - before <= {"run", "runs"}, "training locks its folder"


def test_a_port_that_is_taken_is_one_sentence(commands: Commands, tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ("--device", "cpu", "--port", port, "--checkpoint", tiny_model)
        assert f"127.0.0.1:{port}" in commands.run("captioner", "serve", *options).sentence()
