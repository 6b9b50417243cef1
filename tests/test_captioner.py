"""The Python interface: photo in, Caption out."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from PIL import Image

from captioner import Captioner, checkpoint
from captioner.checkpoint_writer import add_files
from captioner.data.tokenizers import CharacterTokenizer
from captioner.data.vocabulary import Tokenizer, Vocabulary
from captioner.errors import CheckpointError, ConfigError, ImageError
from captioner.types import Geometry
from captioner.visualization import Caption

NUMBERS = range(6)


@pytest.fixture(scope="module")
def captioner(tiny_model: Path) -> Captioner:
    return Captioner.from_pretrained(tiny_model, device="cpu")


@pytest.fixture(scope="module")
def paths(drawn_photos: Path) -> list[Path]:
    return [drawn_photos / f"{number:02d}.jpg" for number in NUMBERS]


def close(one: Caption, other: Caption) -> bool:
    return (
        one.words == other.words
        and one.geometry == other.geometry
        and np.allclose(one.maps, other.maps, atol=1e-5)
        and np.allclose(one.beta, other.beta, atol=1e-5)
        and np.allclose(one.log_probs, other.log_probs, atol=1e-4)
    )


def test_a_caption_has_the_promised_attributes(captioner: Captioner, paths: list[Path]) -> None:
    for path in paths:
        caption = captioner.caption(path)
        count = len(caption.words)
        assert 1 <= count <= 12
        assert caption.text == " ".join(caption.words)
        assert set(caption.words) <= set(tiny.WORDS)
        assert caption.maps.shape == (count, 2, 3)
        assert caption.maps.dtype == np.float32
        np.testing.assert_allclose(caption.maps.sum((1, 2)), 1, atol=1e-5)
        assert (caption.maps >= 0).all()
        assert caption.beta.shape == caption.log_probs.shape == (count,)
        assert ((caption.beta > 0) & (caption.beta < 1)).all()
        assert (caption.log_probs <= 0).all()
        assert caption.cells is None
        assert caption.geometry == Geometry(60, 48, 0, 0, 60, 48)
        assert count == 12 or caption.end_log_prob is not None


def test_in_bfloat16_the_encoder_is_rougher_and_all_else_the_same(
    captioner: Captioner, tiny_model: Path, paths: list[Path]
) -> None:
    rough = Captioner.from_pretrained(tiny_model, device="cpu", precision="bfloat16")
    (exact, _), (near, _) = captioner.encode(paths), rough.encode(paths)
    assert near.features.dtype == torch.float32
    difference = (near.features - exact.features).norm() / exact.features.norm()
    assert 1e-4 < difference < 0.03
    assert {p.dtype for p in rough.model.encoder.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in rough.model.decoder.parameters()} == {torch.float32}
    with pytest.raises(ConfigError, match="precision: 'float16' is not accepted"):
        Captioner.from_pretrained(tiny_model, device="cpu", precision="float16")  # type: ignore
    one, other = captioner.score(paths[0], "a red disc"), rough.score(paths[0], "a red disc")
    np.testing.assert_allclose(one.log_probs, other.log_probs, atol=0.3)
    np.testing.assert_allclose(other.maps.sum((1, 2)), 1, atol=1e-5)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_batch_is_captioned_as_one_at_a_time(
    captioner: Captioner, paths: list[Path], beam_size: int
) -> None:
    together = captioner.caption_batch(paths, beam_size=beam_size)
    for path, caption in zip(paths, together, strict=True):
        assert close(captioner.caption(path, beam_size=beam_size), caption)


def test_settings_that_are_not_given_are_the_model_s_own(
    captioner: Captioner, paths: list[Path]
) -> None:
    own = [captioner.caption(path).text for path in paths]
    same = [captioner.caption(p, beam_size=3, max_words=12, length_penalty=0.0).text for p in paths]
    assert own == same
    changed = {
        "beam_size": [captioner.caption(path, beam_size=1).text for path in paths],
        "length_penalty": [captioner.caption(path, length_penalty=3.0).text for path in paths],
    }
    assert all(texts != own for texts in changed.values()), changed
    assert all(len(captioner.caption(path, max_words=2).words) <= 2 for path in paths)


def test_scoring_a_written_caption_gives_its_own_numbers(
    captioner: Captioner, paths: list[Path]
) -> None:
    for path in paths:
        caption = captioner.caption(path)
        scored = captioner.score(path, caption.text)
        assert close(scored, caption)
        if caption.end_log_prob is not None:
            assert scored.end_log_prob == pytest.approx(caption.end_log_prob, abs=1e-4)


def test_a_caption_that_i_bring_keeps_its_words(captioner: Captioner, paths: list[Path]) -> None:
    scored = captioner.score(paths[0], "A purple DISC, on the field!")
    assert scored.words == ["a", "purple", "disc", "on", "the", "field"]
    assert scored.maps.shape == (6, 2, 3)
    np.testing.assert_allclose(scored.maps.sum((1, 2)), 1, atol=1e-5)
    unknown = captioner.score(paths[0], "a violet disc on the field")
    np.testing.assert_array_equal(scored.log_probs, unknown.log_probs)
    assert scored.end_log_prob is not None


def test_a_photo_that_cannot_be_read_raises_a_photo_error(
    captioner: Captioner, tmp_path: Path
) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no photo")
    photos: list[tuple[Any, str]] = [
        *((path, str(path)) for path in (tmp_path / "bad.jpg", tmp_path / "none.jpg", tmp_path)),
        (b"", "is an empty file"),
        (b"no photo", "is not a photo"),
        (None, "is a NoneType; give a path"),
        (np.zeros((0, 0, 3), np.uint8), "is an array of uint8 [0, 0, 3]"),
    ]
    for photo, said in photos:
        with pytest.raises(ImageError, match=re.escape(said)):
            captioner.caption_batch([photo])
        with pytest.raises(ImageError, match=re.escape(said)):
            captioner.score(photo, "a disc")


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "I;16", "1", "LA"])
def test_an_image_of_any_mode_is_captioned_as_its_file(
    captioner: Captioner, mode: str, tmp_path: Path
) -> None:
    grey = tiny.photo(3)[0].convert("L")
    image = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257) if mode == "I;16" else None
    image = image or tiny.photo(3)[0].convert(mode)
    assert image.mode == mode
    path = tmp_path / ("photo.tif" if mode == "CMYK" else "photo.png")
    image.save(path)
    before = image.tobytes()
    assert close(captioner.caption(image), captioner.caption(path))
    assert image.tobytes() == before


def test_a_pil_image_keeps_its_exif_orientation(captioner: Captioner, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    tiny.photo(0)[0].save(tmp_path / "turned.jpg", exif=exif, quality=95)
    with Image.open(tmp_path / "turned.jpg") as image:
        caption = captioner.caption(image)
    assert close(caption, captioner.caption(tmp_path / "turned.jpg"))
    assert (caption.geometry.photo_width_px, caption.geometry.photo_height_px) == (48, 60)
    # What is drawn is the upright photo too.
    assert caption._repr_png_() == captioner.caption(tmp_path / "turned.jpg")._repr_png_()


def test_every_kind_of_image_argument_is_captioned_alike(
    captioner: Captioner, paths: list[Path]
) -> None:
    expected = captioner.caption(paths[1])
    with Image.open(paths[1]) as opened:
        image = opened.convert("RGB")
    pixels = np.array(image)
    with paths[1].open("rb") as file:
        for given in (
            str(paths[1]),
            paths[1].read_bytes(),
            file,
            image,
            pixels,
            torch.from_numpy(pixels),
        ):
            assert close(captioner.caption(given), expected)
    assert close(captioner.caption_batch(np.stack([pixels, pixels]))[1], expected)


def test_images_of_any_iterable_are_captioned_and_no_others(
    captioner: Captioner, paths: list[Path]
) -> None:
    expected = captioner.caption_batch(paths)
    for images in ((path for path in paths), map(str, paths)):
        assert all(map(close, captioner.caption_batch(images), expected))
    assert captioner.caption_batch([]) == []
    with pytest.raises(ConfigError, match="images: is one image; put it in a list"):
        captioner.caption_batch(paths[0])


@pytest.fixture
def bundled(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose bundled model is the tiny one."""
    models = tmp_path / "package" / "models"
    shutil.copytree(tiny_model, models / "soft")
    (models / "unfinished").mkdir()
    monkeypatch.setattr(checkpoint, "MODELS", models)
    return models


def test_the_bundled_model_is_the_default_and_others_are_refused(bundled: Path) -> None:
    assert checkpoint.bundled_models() == ["soft"]
    assert Captioner.from_pretrained().vocabulary.tokens[4:] == tiny.WORDS
    with pytest.raises(CheckpointError, match="no model 'hard'; the bundled ones are soft"):
        Captioner.from_pretrained("hard")


def test_a_run_is_as_good_as_its_best(tmp_path: Path, tiny_model: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "run" / "best")
    for place in (tmp_path / "run", str(tmp_path / "run"), tmp_path / "run" / "best"):
        assert Captioner.from_pretrained(place).vocabulary.tokens[4:] == tiny.WORDS


def test_the_n_best_are_the_searchs_own_and_begin_with_the_caption(
    captioner: Captioner, paths: list[Path]
) -> None:
    expected = captioner.caption_batch(paths, beam_size=4)
    found = captioner.n_best(paths, 3, beam_size=4)
    for best, captions in zip(expected, found, strict=True):
        assert close(captions[0], best)
        assert 1 <= len(captions) <= 3
        assert len({caption.text for caption in captions}) == len(captions)
    assert max(map(len, found)) == 3
    assert all(len(captions) == 1 for captions in captioner.n_best(paths, 5, beam_size=1))
    with pytest.raises(ConfigError, match="num_captions: 0"):
        captioner.n_best(paths, 0)


def test_a_transformed_image_gets_the_caption_of_the_image(
    captioner: Captioner, paths: list[Path]
) -> None:
    with Image.open(paths[2]) as image:
        prepared = captioner.transform(image.convert("RGB"))
    assert close(captioner.caption(prepared), captioner.caption(paths[2]))
    with pytest.raises(ImageError, match="has shape"):
        captioner.caption((prepared[0][:, :-1], prepared[1]))
    with_gradient = (torch.as_tensor(prepared[0]).clone().requires_grad_(), prepared[1])
    assert close(captioner.caption(with_gradient), captioner.caption(paths[2]))
    scored, expected = (captioner.score(photo, "a red disc") for photo in (prepared, paths[2]))
    assert close(scored, expected)


def test_no_caption_is_shorter_than_min_words(captioner: Captioner, paths: list[Path]) -> None:
    shortest = min(len(caption.words) for caption in captioner.caption_batch(paths))
    several = captioner.options(min_words=shortest + 2, num_captions=3)
    drawn = captioner.options(min_words=shortest + 2, num_captions=3, sample=True, seed=1)
    for options in (several, drawn):
        for captions in captioner.captions(paths, options):
            assert captions
            assert all(len(caption.words) >= shortest + 2 for caption in captions)


def test_samples_vary_and_a_seed_repeats_them(captioner: Captioner, paths: list[Path]) -> None:
    drawn = captioner.sample(paths[0], 8, temperature=2.0, seed=1)
    again = captioner.sample(paths[0], 8, temperature=2.0, seed=1)
    assert [caption.text for caption in drawn] == [caption.text for caption in again]
    assert len({caption.text for caption in drawn}) > 3
    for caption in drawn:
        if caption.end_log_prob is None:
            assert len(caption.words) == 12
        scored = captioner.score(paths[0], caption.text)
        np.testing.assert_allclose(caption.log_probs, scored.log_probs, atol=1e-4)
        np.testing.assert_allclose(caption.maps, scored.maps, atol=1e-5)
    greedy = captioner.caption(paths[0], beam_size=1)
    assert captioner.sample(paths[0], temperature=1e-6)[0].text == greedy.text


def test_a_seed_repeats_the_cells_of_samples_too(paths: list[Path]) -> None:
    captioner = Captioner(*tiny.model(select="hard", at_test="sample"))
    for call in (
        lambda: captioner.sample(paths[0], 6, seed=2**63 - 1),
        lambda: captioner.n_best(paths[:1], 3, seed=1, paths=2)[0],
        lambda: [captioner.score(paths[0], "w1 w2 w3", seed=1, paths=2)],
        lambda: [captioner.score(paths[0], "w1 w2 w3", seed=2, paths=2)],
    ):
        drawn = call()
        with ThreadPoolExecutor(4) as threads:  # each has the numbers of its own seed
            repeats = [each.result() for each in [threads.submit(call) for _ in range(4)]]
        for again in repeats:
            for one, other in zip(drawn, again, strict=True):
                assert one.text == other.text
                for name in ("cells", "maps", "paths"):
                    np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert len({tuple(caption.cells) for caption in drawn}) > 1 or len(drawn) == 1
    drawn = captioner.sample(paths[0], seed=3)
    scored = captioner.score(paths[0], drawn[0].text, seed=3)  # with the cells of the same seed
    np.testing.assert_array_equal(drawn[0].cells, scored.cells)


def test_a_saved_model_captions_alike(
    captioner: Captioner, paths: list[Path], tmp_path: Path
) -> None:
    captioner.save_pretrained(tmp_path / "deep" / "copy")
    made = Captioner(*tiny.model())
    made.save_pretrained(tmp_path / "made")
    for folder in (tmp_path / "deep" / "copy", tmp_path / "made"):
        other = Captioner.from_pretrained(folder, device="cpu")
        assert close(other.caption(paths[0]), captioner.caption(paths[0]))
    with pytest.raises(CheckpointError, match="already exists"):
        captioner.save_pretrained(tmp_path / "made")


def test_with_a_calibrator_captions_have_a_confidence(
    tiny_model: Path, paths: list[Path], tmp_path: Path
) -> None:
    from captioner.generation.confidence import FEATURES, Calibrator

    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    assert Captioner.from_pretrained(folder, device="cpu").caption(paths[0]).confidence is None
    count = len(FEATURES)
    calibrator = Calibrator(
        (0.0,) * count, (1.0,) * count, (1.0,) + (0.0,) * (count - 1), 1.0, 0.4, 0.5
    )
    for _ in range(2):  # the one that is there is replaced
        add_files(folder, calibrator.to_files())
    captioner = Captioner.from_pretrained(folder, device="cpu")
    assert captioner.calibrator == calibrator
    for best in captioner.n_best(paths, 3):
        for caption in best:
            log_probs = [*caption.log_probs]
            if caption.end_log_prob is not None:
                log_probs.append(caption.end_log_prob)
            expected = 1 / (1 + np.exp(-(np.mean(log_probs) + 1)))
            assert caption.confidence == pytest.approx(expected, abs=1e-5)
            assert caption.confidence_threshold == 0.4
            assert caption.to_dict()["confidence"] == pytest.approx(expected, abs=1e-5)
            assert caption.to_dict()["confidence_threshold"] == 0.4
    one = (0.0,), (1.0,), (1.0,), 0.0, 0.4, 0.5
    captioner.calibrator = Calibrator(*one, features=("margin",))  # of earlier versions
    assert captioner.caption(paths[0]).confidence != 0.5, "the others of the beam count"
    captioner.calibrator = calibrator
    captioner.save_pretrained(tmp_path / "copy")
    Captioner(*tiny.model(), calibrator=calibrator).save_pretrained(tmp_path / "made")
    for saved in (tmp_path / "copy", tmp_path / "made"):
        assert Captioner.from_pretrained(saved, device="cpu").calibrator == calibrator
    (folder / "calibrator.json").write_text("{}")
    with pytest.raises(CheckpointError, match="calibrator.json"):
        Captioner.from_pretrained(folder, device="cpu")


def test_evaluate_scores_a_data_set(
    tiny_model: Path, drawn_photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # without Java, whose scores have tests of their own
    captioner = Captioner.from_pretrained(tiny_model, device="cpu")
    found = captioner.evaluate(drawn_photos, split="val", beam_size=2)
    assert len(found.captions) == 3
    assert found.results["metrics"]["CIDEr"] >= 0
    assert found.results["signature"]["beam_size"] == 2
    images = tiny.read_split(format="table", root=drawn_photos, split="val").images
    assert captioner.evaluate(images, beam_size=2).results["metrics"] == found.results["metrics"]
    long = captioner.evaluate(images, min_words=9)
    assert all(len(caption.words) >= 9 for caption in long.captions.values())
    assert long.results["signature"]["min_words"] == 9
    monkeypatch.setattr(captioner, "captions", None)  # a mistake is found before
    with pytest.raises(TypeError, match="beam"):
        captioner.evaluate(images, beam=2)
    with pytest.raises(ConfigError, match="use n_best"):
        captioner.caption(images[0].path, num_captions=2)
    monkeypatch.undo()
    assert captioner.caption(images[0].path, num_captions=1).words


def test_no_word_comes_twice_in_a_row_or_around_an_article(drawn_photos: Path) -> None:
    model, config, vocabulary = tiny.model()
    photos = sorted(drawn_photos.glob("*.jpg"))

    def doubles(tokenizer: Any, *, allowed: bool) -> int:
        decoding = replace(config.decoding, no_double_words=not allowed)
        known = Vocabulary(vocabulary.words, tokenizer)
        captioner = Captioner(model, replace(config, decoding=decoding), known)
        texts = [" ".join(c.words) for c in captioner.caption_batch(photos, max_words=9)]
        return sum(bool(re.search(r"\b(\S+) (?:(?:a|the) )?\1\b", text)) for text in texts)

    free = doubles(Tokenizer(), allowed=True)
    assert free > 0
    assert doubles(Tokenizer(), allowed=False) == 0
    assert doubles(CharacterTokenizer(), allowed=False) == free, "letters do come twice in a row"
