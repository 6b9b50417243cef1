"""On a CPU captions need no PyTorch: nothing imports it, and nothing but words to say so fails."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.cbook import get_sample_data
from PIL import Image

from captioner.captioner import Captioner
from captioner.checkpoint import MODELS
from captioner.checkpoint_writer import write_manifest
from captioner.errors import CheckpointError

PHOTO = get_sample_data("grace_hopper.jpg", asfileobj=False)
# Packages of the extras: none of them is there after `pip install .` or `make caption`.
WITHOUT_TORCH = """
import sys
EXTRAS = "torch torchvision timm onnx onnxscript nltk pycocotools pycocoevalcap tensorboard fsspec"
EXTRAS += " pyarrow ray braceexpand fastapi uvicorn starlette prometheus_client tokenizers"
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS.split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda n, *rest: None if n in EXTRAS.split() else found(n, *rest)
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [str(argument) for argument in arguments]
    return run(f"from captioner.__main__ import main\nsys.exit(main({words!r}))")


def test_captions_and_pictures_are_made_without_torch_or_other_needless_imports(
    tmp_path: Path,
) -> None:
    words = ["caption", PHOTO, "--model", "hard", "--output", str(tmp_path), "--words", "--json"]
    done = run(f"""
from captioner.__main__ import main
code = main({words!r})
names = ["matplotlib.pyplot", "matplotlib.figure", "captioner.data.layouts", "captioner.storage"]
names += ["captioner.cli.alt_text", "torch", "tensorboard"]
print(code, [name for name in names if name in sys.modules])
""")
    caption, imported = done.stdout.splitlines()
    assert imported == "0 []", done.stderr
    assert json.loads(caption)["cells"]
    assert (tmp_path / "grace_hopper.attention.png").is_file()


def test_the_whole_interface_works_without_torch() -> None:
    code = f"""
from captioner import Captioner
hard = Captioner.from_pretrained("hard")
words = {{}}
for mode in ("argmax", "expectation", "sample"):
    caption = hard.caption({PHOTO!r}, at_test=mode, paths=2, max_words=4)
    assert (caption.cells is None) == (mode == "expectation"), mode
    assert caption.paths.shape[0] == 2
    assert abs(caption.maps.sum((1, 2)) - 1).max() < 1e-4
options = hard.options(at_test="sample", sample=True, num_captions=2, seed=4, max_words=4)
drawn = [hard.captions([{PHOTO!r}], options)[0] for _ in range(2)]
assert [c.cells.tolist() for c in drawn[0]] == [c.cells.tolist() for c in drawn[1]]
assert hard.score({PHOTO!r}, "a woman in a uniform").log_probs.shape == (5,)
soft = Captioner.from_pretrained("soft", device="cpu", engine="runtime")
(several,) = soft.captions([{PHOTO!r}], soft.options(num_captions=3))
assert len({{c.text for c in several}}) == 3
options = soft.options(sample=True, num_captions=2, seed=4, top_p=0.9, max_words=6)
drawn = [soft.captions([{PHOTO!r}], options)[0] for _ in range(2)]
assert [c.text for c in drawn[0]] == [c.text for c in drawn[1]]
assert len(soft.caption({PHOTO!r}, min_words=12).words) >= 12
assert "torch" not in sys.modules
assert not [name for name in sys.modules if "telemetry" in name]
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("model", ["soft", "hard"])
def test_both_engines_write_the_same_captions(model: str) -> None:
    pixels = np.asarray(Image.open(PHOTO).convert("RGB"))
    images = [pixels, pixels[:200, :300]]
    by_graphs, by_torch = (
        Captioner.from_pretrained(model, device="cpu", engine=engine).caption_batch(images)
        for engine in ("runtime", "torch")
    )
    assert [c.text for c in by_graphs] == [c.text for c in by_torch]
    assert len({c.text for c in by_graphs}) > 1
    for one, other in zip(by_graphs, by_torch, strict=True):
        assert np.abs(one.maps - other.maps).max() < 1e-3 * other.maps.max()
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-3)
        assert one.confidence == pytest.approx(other.confidence, abs=1e-3)


def test_training_without_its_extra_is_one_sentence(tmp_path: Path) -> None:
    done = command("train", "--config", "flickr8k_soft", "--train.output", tmp_path / "run")
    assert done.returncode == 2
    assert "pip install 'captioner[train]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def copied_model(tmp_path: Path) -> Path:
    shutil.copytree(MODELS / "soft", tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_without_graphs_needs_torch_and_says_so(copied_model: Path) -> None:
    for file in copied_model.glob("*.onnx"):
        file.unlink()
    (copied_model / "graphs.json").unlink()
    write_manifest(copied_model)
    done = command("caption", PHOTO, "--checkpoint", copied_model)
    assert done.returncode == 2
    assert "pip install 'captioner[train]'" in done.stderr
    with pytest.raises(CheckpointError, match="captioner export"):
        Captioner.from_pretrained(copied_model, engine="runtime")
    assert Captioner.from_pretrained(copied_model, device="cpu").engine.name == "torch"


def test_a_damaged_graph_is_one_sentence(copied_model: Path) -> None:
    (copied_model / "step.onnx").write_bytes(b"no graph")
    with pytest.raises(CheckpointError, match=r"step\.onnx: damaged"):  # by its digest
        Captioner.from_pretrained(copied_model, device="cpu")
    write_manifest(copied_model)
    with pytest.raises(CheckpointError, match=r"step\.onnx: is no graph"):
        Captioner.from_pretrained(copied_model, device="cpu")
