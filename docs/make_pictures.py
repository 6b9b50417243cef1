"""Make every picture of the documentation with the bundled models: `make pictures`.

Prints each caption, so that whoever runs it sees what the pictures now say.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from PIL import Image, ImageOps

from captioner import Captioner
from captioner.data.images import open_image
from captioner.visualization import Caption, OverlayStyle, caption_gif
from captioner.visualization.overlay import word_overlay
from captioner.visualization.style import STYLES, Layers
from captioner.visualization.word_pictures import contact_sheet

DOCS = Path(__file__).parent
PHOTOS, PICTURES = DOCS / "photos", DOCS / "pictures"
FIRST = "kite"
# Each photo of the second picture: words that a right caption has one of, and words that make it
# wrong, with the reason. A person chose them for these photos.
SMALL: dict[str, tuple[set[str], dict[str, str]]] = {
    "dogs": ({"dog", "dogs"}, {}),
    "eagle": ({"bird", "eagle"}, {}),
    "kitchen": ({"dog"}, {}),
    "cameraman": ({"camera", "tripod"}, {}),
    "horses": ({"horses"}, {"cows": "they are horses"}),
    "groceries": ({"car", "bags"}, {"cat": "there is no cat"}),
}
WIDEST_PX = 1200
JPEG_QUALITY = 78


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    soft = Captioner.from_pretrained()
    first = soft.caption(PHOTOS / f"{FIRST}.jpg")
    _save_six(soft)
    _save_styles(first)
    small = _shrunk(open_image(PHOTOS / f"{FIRST}.jpg"), first, 320)
    (PICTURES / "animation.gif").write_bytes(caption_gif(*small))
    photo = str(PHOTOS / f"{FIRST}.jpg")
    with tempfile.TemporaryDirectory() as folder:
        _command(photo, "--output", folder, "--save", "png,words,matrix,html")
        _command(photo, "--compare", "soft", "hard", "--output", folder)
        _command(photo, "--model", "hard", "--paths", "10", "--output", f"{folder}/hard")
        made = Path(folder)
        _keep(made / f"{FIRST}.attention.png", "sheet")
        _keep(made / f"{FIRST}.comparison.png", "comparison")
        _keep(made / "hard" / f"{FIRST}.attention.png", "paths")
        _keep(made / f"{FIRST}.matrix.png", "matrix")
        word = _noun(first)
        _keep(next(made.glob(f"{FIRST}.{word + 1:02d}-*.png")), "word")
        _save_pages(made / f"{FIRST}.attention.html", word)
    for file in sorted(PICTURES.iterdir()):
        print(f"{file.relative_to(DOCS.parent)}: {file.stat().st_size // 1024} KB")


def _command(*arguments: str) -> None:
    """Run `captioner caption`, as the documentation says."""
    subprocess.run([sys.executable, "-m", "captioner", "caption", *arguments], check=True)


def _keep(file: Path, name: str) -> None:
    """Keep a picture as JPEG under docs/pictures."""
    with Image.open(file) as image:
        image.thumbnail((WIDEST_PX, 10 * WIDEST_PX), Image.Resampling.LANCZOS)
        image.convert("RGB").save(PICTURES / f"{name}.jpg", quality=JPEG_QUALITY, optimize=True)


def _noun(caption: Caption) -> int:
    """Return the word that draws most on the photo."""
    if caption.beta is None:
        return len(caption.words) - 1
    return int(caption.beta.argmax())


def _save_six(captioner: Captioner) -> None:
    """Save six photos with their captions, and say which are wrong."""
    tiles = []
    for name, (right, wrong) in SMALL.items():
        caption = captioner.caption(PHOTOS / f"{name}.jpg")
        reasons = [why for word, why in wrong.items() if word in caption.words]
        verdict = "right" if right & set(caption.words) else "WRONG"
        if reasons:
            verdict = f"WRONG: {reasons[0]}"
        unsure = "; marked as unsure" if caption.is_unsure else ""
        print(f"{name}: {caption.text} ({verdict}{unsure})")
        image = ImageOps.fit(open_image(PHOTOS / f"{name}.jpg"), (300, 225))
        tiles.append((image, f"{caption.text} ({verdict}{unsure})"))
    sheet = contact_sheet(tiles, across=3, tile_px=300)
    sheet.save(PICTURES / "six.jpg", quality=JPEG_QUALITY, optimize=True)


def _shrunk(image: Image.Image, caption: Caption, side_px: int) -> tuple[Image.Image, Caption]:
    """Return the image at this size at most, and its caption with the geometry of that size."""
    small = ImageOps.contain(image, (side_px, side_px), Image.Resampling.LANCZOS)
    return small, replace(caption, geometry=caption.geometry.scaled(*small.size))


def _save_styles(caption: Caption) -> None:
    """Save one word in every style, and as cells."""
    image, small = _shrunk(open_image(PHOTOS / f"{FIRST}.jpg"), caption, 360)
    styles = {f"--style {kind}": OverlayStyle(kind) for kind in STYLES}
    styles["--cells"] = OverlayStyle(smooth=False)
    word = _noun(caption)
    tiles = [
        (word_overlay(Layers(image, style), small, word), name) for name, style in styles.items()
    ]
    sheet = contact_sheet(tiles, across=3, tile_px=360)
    sheet.save(PICTURES / "styles.jpg", quality=JPEG_QUALITY, optimize=True)


def _save_pages(page: Path, word: int) -> None:
    """Save what Chromium shows of a page and of the server, if it is there with Playwright."""
    names = ("chromium", "chromium-browser", "chromium-headless-shell")
    program = next(filter(None, map(shutil.which, names)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        print("page.jpg and server.jpg: left as they are; they need Chromium and Playwright")
        return
    with _serving() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 620})
        tab.goto(page.as_uri())
        tab.evaluate(f"viewers[0].ready.then((viewer) => viewer.show({word}))")
        tab.wait_for_function("viewers[0].frame === null && !viewers[0].canvas.hidden")
        tab.screenshot(path=PICTURES / "page.jpg", type="jpeg", quality=JPEG_QUALITY)
        tab.set_viewport_size({"width": 1200, "height": 1000})
        tab.goto(address)
        tab.set_input_files("#pick", PHOTOS / f"{FIRST}.jpg")
        tab.locator(".cv-word").nth(word).hover()
        tab.wait_for_timeout(1000)  # the map fades in
        tab.screenshot(path=PICTURES / "server.jpg", type="jpeg", quality=JPEG_QUALITY)
        browser.close()


@contextlib.contextmanager
def _serving() -> Iterator[str]:
    """Run `captioner serve` and yield its address."""
    command = [sys.executable, "-m", "captioner", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[-1]  # "captioner listens at http://..."
        server.terminate()


if __name__ == "__main__":
    main()
