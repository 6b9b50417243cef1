"""The page in a real browser, on a real server."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from chromium import Watched
from PIL import Image
from programs import REPOSITORY, Programs, Running
from serving_tools import started

from captioner import Captioner

Site = tuple[str, Running]
Models = dict[str, Captioner]


@pytest.fixture(scope="module")
def site(programs: Programs, tiny_model: Path, tiny_hard_model: Path) -> Iterator[Site]:
    with started(programs, "--checkpoint", tiny_model, "--checkpoint", tiny_hard_model) as running:
        yield running


@pytest.fixture(scope="module")
def photo(tiny_models: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photo of a page's size whose caption has several words that attend to several places."""
    captioner = tiny_models["tiny"]
    path = tmp_path_factory.mktemp("page") / "holiday photo.jpg"
    moves = {}
    for number in range(10):
        tiny.photo(number)[0].resize((640, 480), Image.Resampling.BICUBIC).save(path)
        caption = captioner.caption(path)
        if 4 <= len(caption.words) <= 10:
            first, second, last = (caption.maps[index] for index in (0, 1, -1))
            moves[number] = min(np.abs(first - last).max(), np.abs(first - second).max())
    number = max(moves, key=lambda each: moves[each])
    tiny.photo(number)[0].resize((640, 480), Image.Resampling.BICUBIC).save(path)
    return path


@pytest.fixture
def opened(browser: Any, site: Site) -> Iterator[Any]:
    """Opens the page; afterwards nothing may have complained or asked another host."""
    contexts: list[Any] = []
    pages: list[Watched] = []

    def open_it(**options: Any) -> Watched:
        contexts.append(browser.new_context(**options))
        watched = Watched(contexts[-1])
        pages.append(watched)
        watched.page.goto(site[0])
        watched.page.wait_for_selector("#model option", state="attached")
        return watched

    yield open_it
    for context in contexts:
        context.close()
    for watched in pages:
        assert watched.asked_of_others(site[0]) == []
        assert watched.complaints == []


def caption_on(page: Any) -> str:
    page.wait_for_selector(".cv-word")
    return " ".join(page.locator(".cv-text").all_inner_texts())


def pixels(page: Any, selector: str) -> np.ndarray:
    picture = Image.open(io.BytesIO(page.locator(selector).screenshot()))
    return np.asarray(picture.convert("RGB"), dtype=int)


def test_a_photo_is_uploaded_captioned_and_hovered(
    opened: Any, photo: Path, tiny_models: Models
) -> None:
    page = opened(viewport={"width": 1200, "height": 900}).page
    assert page.locator("#result").is_hidden()
    page.set_input_files("#pick", photo)
    expected = tiny_models["tiny"].caption(photo)
    assert caption_on(page) == expected.text
    assert page.locator(".cv-photo").get_attribute("alt") == expected.text
    page.wait_for_timeout(200)
    page.mouse.move(1, 1)
    before = pixels(page, ".cv-stage")
    seen = []
    for index in (0, len(expected.words) - 1):
        page.locator(".cv-word").nth(index).hover()
        page.wait_for_timeout(200)
        seen.append(pixels(page, ".cv-stage"))
        changed = np.abs(seen[-1] - before).max(axis=2) > 16
        assert changed.mean() > 0.5, "the word's map lies over the photo"
    assert np.abs(seen[0] - seen[1]).max() > 4, "another word, another map"
    page.mouse.move(1, 1)
    page.wait_for_timeout(200)
    assert np.abs(pixels(page, ".cv-stage") - before).max() < 8, "and it goes away again"


def test_the_keyboard_is_enough(opened: Any, photo: Path) -> None:
    page = opened(viewport={"width": 1200, "height": 900}).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "pick"
    page.set_input_files("#pick", photo)
    caption_on(page)
    reached = set()
    for _ in range(25):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.id || document.activeElement.dataset.format")
        )
    assert {"own-text", "png", "gif", "html", "svg", "pdf", "json"} <= reached


def test_model_beam_and_hard_attention_can_be_chosen(
    opened: Any, photo: Path, tiny_models: Models
) -> None:
    page = opened(viewport={"width": 1200, "height": 900}).page
    page.set_input_files("#pick", photo)
    caption_on(page)
    soft, hard = tiny_models.values()
    with page.expect_response(re.compile("/v1/captions")):
        page.fill("#beam", "1")
        page.locator("#beam").blur()
    page.wait_for_selector("#status:empty", state="attached")
    assert caption_on(page) == soft.caption(photo, beam_size=1).text
    assert page.locator("#at-test").is_hidden()
    with page.expect_response(re.compile("/v1/captions")):
        page.select_option("#model", "tiny_hard")
    page.wait_for_selector("#status:empty", state="attached")
    assert caption_on(page) == hard.caption(photo, beam_size=1).text
    with page.expect_response(re.compile("/v1/captions")):
        page.select_option("#at-test", "expectation")
    page.wait_for_selector("#status:empty", state="attached")
    assert caption_on(page) == hard.caption(photo, beam_size=1, at_test="expectation").text
    page.select_option("#model", "*")
    page.wait_for_selector(".cv-models")
    assert page.locator(".cv-models input").count() == 2


def test_a_caption_of_the_user_is_scored_and_taken_back(
    opened: Any, photo: Path, tiny_models: Models
) -> None:
    page = opened(viewport={"width": 1200, "height": 900}).page
    page.set_input_files("#pick", photo)
    own = caption_on(page)
    page.fill("#own-text", "The red DISC, on a table")
    page.keyboard.press("Enter")
    page.wait_for_selector("#own-score:not(:empty)")
    assert caption_on(page) == "the red disc on a table"
    scored = tiny_models["tiny"].score(photo, "the red disc on a table")
    total = float(scored.log_probs.sum()) + scored.end_log_prob
    text = page.locator("#own-score").inner_text()
    assert f"{total:.2f}".replace("-", "−") in text
    assert "unknown words: table" in text
    page.click("#own-back")
    page.wait_for_selector("#own-back", state="hidden")
    assert caption_on(page) == own


def test_everything_can_be_downloaded(opened: Any, photo: Path, tmp_path: Path) -> None:
    page = opened(viewport={"width": 1200, "height": 900}, accept_downloads=True).page
    page.set_input_files("#pick", photo)
    text = caption_on(page)
    for kind in ("png", "gif", "html", "svg", "pdf", "json"):
        with page.expect_download() as waited:
            page.click(f"[data-format={kind}]")
        assert waited.value.suggested_filename == f"holiday photo.caption.{kind}"
        file = tmp_path / kind
        waited.value.save_as(file)
        if kind == "json":
            assert json.loads(file.read_text())["captions"][0]["caption"] == text
        elif kind == "html":
            assert text in file.read_text(encoding="utf-8")
        elif kind in ("svg", "pdf"):
            assert {"svg": b"<svg", "pdf": b"%PDF"}[kind] in file.read_bytes()[:2000]
        else:
            with Image.open(file) as picture:
                assert picture.format == kind.upper()


@pytest.mark.parametrize("way", ["drop", "paste"])
def test_a_photo_can_be_dropped_and_pasted(opened: Any, photo: Path, way: str) -> None:
    page = opened(viewport={"width": 1200, "height": 900}).page
    page.evaluate(
        """([bytes, way]) => {
          const carried = new DataTransfer();
          carried.items.add(new File([new Uint8Array(bytes)], "a.jpg", {type: "image/jpeg"}));
          const options = {bubbles: true, cancelable: true};
          document.getElementById("drop").dispatchEvent(way === "drop"
            ? new DragEvent("drop", {...options, dataTransfer: carried})
            : new ClipboardEvent("paste", {...options, clipboardData: carried}));
        }""",
        [list(photo.read_bytes()), way],
    )
    assert caption_on(page)


def test_phone_shows_caption_and_photo_first_and_large_buttons(opened: Any, photo: Path) -> None:
    page = opened(viewport={"width": 375, "height": 667}, has_touch=True, is_mobile=True).page
    assert page.locator("#take-label").is_visible()
    assert page.locator("#take").get_attribute("capture") == "environment"
    page.set_input_files("#take", photo)
    caption_on(page)
    stage, words, more = (
        page.locator(place).bounding_box() for place in (".cv-stage", ".cv-words", "#drop")
    )
    assert 0 <= words["y"] < words["y"] + words["height"] <= stage["y"]
    assert stage["y"] + stage["height"] <= 667 < more["y"]
    assert not page.locator("#model").is_visible(), "the options are folded"
    page.click("#options summary")
    assert page.locator("#model").is_visible()
    page.locator(".cv-word").first.tap()
    page.wait_for_timeout(200)
    assert page.locator(".cv-overlay").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    for box in (
        each.bounding_box() for each in page.locator("button:visible, select:visible").all()
    ):
        assert box["height"] >= 40, box
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_sample_photo_is_captioned_and_its_caption_copied(opened: Any) -> None:
    page = opened(permissions=["clipboard-read", "clipboard-write"]).page
    page.click("#sample")
    text = caption_on(page)
    page.get_by_text("Copy caption").click()
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == text
    assert not page.locator("#sample").is_visible()


def test_html_example_of_the_docs_works_on_another_site(
    browser: Any, programs: Programs, tiny_model: Path, photo: Path, tmp_path: Path
) -> None:
    text = (REPOSITORY / "docs" / "serving.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```html\n(.*?)^```$", text, re.M | re.S)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        origin = f"http://localhost:{other.server_port}"
        threading.Thread(target=other.serve_forever, daemon=True).start()
        with started(programs, "--checkpoint", tiny_model, "--allow-origin", origin) as (
            address,
            _,
        ):
            (tmp_path / "index.html").write_text(
                example.replace("http://localhost:8000", address.rstrip("/"))
            )
            context = browser.new_context()
            watched = Watched(context)
            page = watched.page
            page.goto(f"{origin}/index.html")
            page.set_input_files("input[type=file]", photo)
            assert caption_on(page)
            page.locator(".cv-word").first.hover()
            page.locator(".cv-overlay").wait_for()
            layout = page.evaluate("getComputedStyle(document.querySelector('.cv-layout')).display")
            assert layout == "grid", "the style sheet comes with the script"
            assert [text for text in watched.complaints if "404" not in text] == []
            context.close()
        other.shutdown()


def test_a_token_is_asked_for_and_remembered(
    browser: Any, programs: Programs, tiny_model: Path, photo: Path
) -> None:
    with started(programs, "--checkpoint", tiny_model, CAPTIONER_TOKEN="sesame") as (address, _):
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.fill("#token", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#login:not([hidden])")
        page.fill("#token", "sesame")
        page.keyboard.press("Enter")
        page.wait_for_selector("#model option", state="attached")
        page.set_input_files("#pick", photo)
        assert caption_on(page)
        context.close()
