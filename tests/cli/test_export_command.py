"""`captioner export`: half the size, the same captions."""

from __future__ import annotations

from pathlib import Path

from programs import Programs

from captioner.captioner import Captioner


def test_an_exported_model_is_half_as_large_and_keeps_the_given_search_settings(
    programs: Programs, tiny_model: Path, drawn_photos: Path, tmp_path: Path
) -> None:
    options = ["--no-repeat-ngram", 2, "--length-penalty", 0.5]
    done = programs.run("captioner", "export", tiny_model, tmp_path / "small", *options)
    assert done.code == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'small'}\n"
    before, after = (
        (folder / "model.safetensors").stat().st_size for folder in (tiny_model, tmp_path / "small")
    )
    assert after < 0.6 * before
    small = Captioner.from_pretrained(tmp_path / "small", device="cpu")
    assert small.config.decoding.no_repeat_ngram == 2
    assert small.config.decoding.length_penalty == 0.5
    assert small.caption(drawn_photos / "00.jpg").words
