"""The REST interface, asked without a socket."""

from __future__ import annotations

import asyncio
import io
import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from PIL import Image
from serving_tools import BASE
from starlette.requests import Request
from starlette.testclient import TestClient

from captioner import Captioner
from captioner.data.transforms import open_image
from captioner.serving.admission import Admission
from captioner.serving.app import PAGE, create_app
from captioner.serving.problems import Problem
from captioner.serving.requests import read_image_and_options, validate_options
from captioner.serving.schemas import CAPTION_EXAMPLE, CaptionBody, CaptionOptions
from captioner.serving.security import LOOPBACK_HOSTS
from captioner.serving.service import Limits

JPEG = {"Content-Type": "image/jpeg"}


def problem(answer: Any, status: int) -> str:
    """The detail of an answer that has to be a problem document of this status."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    content = answer.json()
    assert content["status"] == status
    assert content["type"] == "about:blank"
    assert content["title"]
    return str(content["detail"])


def form(photo: bytes, **fields: object) -> dict[str, Any]:
    data = {name: str(value) for name, value in fields.items()}
    return {"files": {"image": ("photo.jpg", photo, "image/jpeg")}, "data": data}


def rounded(values: Any) -> Any:
    return pytest.approx(values, abs=2e-5)


@pytest.mark.parametrize("options", [{}, {"beam_size": 1}, {"model": "tiny_hard", "beam_size": 2}])
def test_captions_are_those_of_python_and_a_form_says_what_raw_bytes_say(
    client: TestClient, tiny_models: dict[str, Captioner], drawn_photos: Path, options: Any
) -> None:
    texts = set()
    for number in range(6):
        photo = (drawn_photos / f"{number:02d}.jpg").read_bytes()
        captioner = tiny_models[options.get("model", "tiny")]
        expected = captioner.caption(photo, beam_size=options.get("beam_size")).to_dict(maps=True)
        asked = {**options, "maps": "true"}
        raw = client.post("/v1/captions", content=photo, params=asked, headers=JPEG)
        sent = client.post("/v1/captions", **form(photo, **asked))
        assert raw.status_code == sent.status_code == 200, raw.text
        assert raw.json() == sent.json()
        answer = raw.json()
        assert answer["model"] == options.get("model", "tiny")
        (caption,) = answer["captions"]
        assert caption.keys() == expected.keys()
        for name in ("caption", "words", "geometry", "cells"):
            assert caption.get(name) == expected.get(name)
        for name in ("log_probs", "beta", "end_log_prob"):
            assert caption[name] == rounded(expected[name])
        for row, other in zip(caption["maps"][0], expected["maps"][0], strict=True):
            assert row == rounded(other)
        texts.add(caption["caption"])
    assert len(texts) > 2


def test_maps_come_only_when_they_are_asked_for(client: TestClient, photo: bytes) -> None:
    (caption,) = client.post("/v1/captions", content=photo, headers=JPEG).json()["captions"]
    assert "maps" not in caption
    assert "geometry" not in caption


def test_several_captions_are_the_searchs_own_best_first(
    client: TestClient, tiny_models: dict[str, Captioner], photo: bytes
) -> None:
    answer = client.post("/v1/captions", **form(photo, beam_size=4, num_captions=3)).json()
    (expected,) = tiny_models["tiny"].n_best([photo], 3, beam_size=4)
    assert [caption["caption"] for caption in answer["captions"]] == [c.text for c in expected]
    assert len({caption["caption"] for caption in answer["captions"]}) == 3


def test_a_caption_that_is_brought_is_read_as_python_reads_it(
    client: TestClient, tiny_models: dict[str, Captioner], photo: bytes
) -> None:
    text = "A red disc, on the table!"
    expected = tiny_models["tiny"].score(photo, text)
    answer = client.post("/v1/scores", **form(photo, caption=text, maps="true")).json()
    assert answer["caption"]["words"] == expected.words
    assert answer["caption"]["log_probs"] == rounded(expected.log_probs.tolist())
    assert answer["unknown_words"] == ["table"]
    assert expected.end_log_prob is not None
    assert answer["log_prob"] == rounded(float(expected.log_probs.sum()) + expected.end_log_prob)
    raw = client.post("/v1/scores", content=photo, headers=JPEG, params={"caption": text})
    assert raw.json()["log_prob"] == answer["log_prob"]


def test_pictures_are_drawn_in_every_format(client: TestClient, photo: bytes) -> None:
    sheet = client.post("/v1/pictures", **form(photo))
    assert sheet.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(sheet.content)).width > 500
    page = client.post("/v1/pictures", **form(photo, format="html", caption="a red disc"))
    assert page.headers["content-type"].startswith("text/html")
    assert "a red disc" in page.text
    assert "attachment" in page.headers["content-disposition"]
    animation = client.post("/v1/pictures", **form(photo, format="gif"))
    assert animation.headers["content-type"] == "image/gif"
    assert getattr(Image.open(io.BytesIO(animation.content)), "n_frames", 1) > 1


def test_pictures_of_a_large_photo_are_drawn_on_a_smaller_one(client: TestClient) -> None:
    file = io.BytesIO()
    Image.effect_noise((3000, 1500), 60).convert("RGB").save(file, format="JPEG")
    page = client.post("/v1/pictures", **form(file.getvalue(), format="html"))
    assert page.status_code == 200, page.text
    assert '"photo_width_px":1280' in page.text
    assert '"photo_height_px":640' in page.text
    assert "Photo of 3000 × 1500 pixels, here 1280 × 640." in page.text


@pytest.mark.parametrize(
    ("address", "fields", "told"),
    [
        ("captions", {"beam_size": 0}, "beam_size"),
        ("captions", {"beam_size": 21}, "beam_size"),
        ("captions", {"beam_size": "many"}, "beam_size"),
        ("captions", {"beam_size": 2, "num_captions": 3}, "at most beam_size"),
        ("captions", {"maps": "perhaps"}, "maps"),
        ("captions", {"model": "none"}, "there is no model 'none'; use tiny or tiny_hard"),
        ("captions", {"at_test": "argmax"}, "hard attention"),
        ("captions", {"beam": 3}, "there is no such option"),
        ("scores", {}, "caption"),
        ("scores", {"caption": "?!"}, "no words"),
        ("scores", {"caption": "a" * 1001}, "caption"),
        ("scores", {"caption": "\ufdfa " * 500}, "9500 characters after Unicode normalisation"),
        ("scores", {"caption": "a " * 61}, "61 words"),
        ("scores", {"caption": "\ufdfa " * 16}, "64 words"),
        ("scores", {"caption": "a", "beam_size": 3}, "no such option"),
        ("pictures", {"format": "bmp"}, "format"),
        ("pictures", {"caption": "a disc", "beam_size": 3}, "not with caption"),
        ("pictures", {"caption": "\ufdfa " * 500}, "after Unicode normalisation"),
        ("pictures", {"caption": "a " * 61}, "61 words"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(
    client: TestClient, photo: bytes, address: str, fields: dict[str, Any], told: str
) -> None:
    for answer in (
        client.post(f"/v1/{address}", **form(photo, **fields)),
        client.post(f"/v1/{address}", content=photo, headers=JPEG, params=fields),
    ):
        assert told in problem(answer, 422)
        assert answer.json()["errors"]


def test_an_option_given_twice_is_refused(client: TestClient, photo: bytes) -> None:
    answer = client.post("/v1/captions?beam_size=2", **form(photo, beam_size=3))
    assert "beam_size is given twice" in problem(answer, 422)


@pytest.mark.parametrize(
    ("content", "media_type", "status", "told"),
    [
        (b"words", "image/jpeg", 415, "known format"),
        (b"words", "text/plain", 415, "multipart/form-data"),
        (b"", "image/jpeg", 422, "no photo"),
        (b"words", "multipart/form-data", 400, "boundary"),
        (b"words", "multipart/form-data; boundary=x", 400, "multipart"),
        (b"", "multipart/form-data; boundary=x", 422, "no photo"),
        (b"image=words", "application/x-www-form-urlencoded", 415, "multipart/form-data"),
    ],
)
def test_a_body_that_holds_no_photo_is_refused(
    client: TestClient, content: bytes, media_type: str, status: int, told: str
) -> None:
    answer = client.post("/v1/captions", content=content, headers={"Content-Type": media_type})
    assert told.lower() in problem(answer, status).lower()


@pytest.mark.parametrize("charset", ["punycode", "undefined", '"PunyCode"', "rot13", "utf-16", ""])
def test_a_form_in_an_odd_charset_is_refused_at_once(client: TestClient, charset: str) -> None:
    """Decoding this field as punycode would hold up the event loop for most of a minute."""
    form = b'--x\r\nContent-Disposition: form-data; name="caption"\r\n\r\n'
    form += b"a" * 1_000_000 + b"\r\n--x--\r\n"
    headers = {"Content-Type": f"multipart/form-data; charset={charset}; boundary=x"}
    began = time.monotonic()
    response = client.post("/v1/captions", content=form, headers=headers)
    assert "charset" in problem(response, 400)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(("charset", "encoding"), [("UTF-8", "utf-8"), ("iso-8859-1", "latin-1")])
def test_a_form_may_name_its_charset(
    client: TestClient, photo: bytes, charset: str, encoding: str
) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="caption"\r\n\r\n'
    form += "a café".encode(encoding) + b"\r\n"
    form += b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    form += photo + b"\r\n--x--\r\n"
    headers = {"Content-Type": f"multipart/form-data; charset={charset}; boundary=x"}
    answer = client.post("/v1/scores", content=form, headers=headers).json()
    assert answer["caption"]["caption"] == "a café"


def test_others_get_their_turn_while_a_form_is_parsed() -> None:
    data = b"\r" * 2_000_000  # slow to parse
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    body = head + data + b"\r\n--x--\r\n"
    headers = [(b"content-type", b"multipart/form-data; boundary=x")]
    scope = {"type": "http", "method": "POST", "query_string": b"", "headers": headers}
    scope |= {"path": "/v1/captions", "scheme": "http", "server": ("localhost", 80)}
    turns = 0

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def read() -> bytes:
        others = asyncio.create_task(take_turns())
        with Admission(1, 10**8).upload("") as upload:
            image, _ = await read_image_and_options(
                Request(scope, receive), CaptionOptions, 10**8, upload
            )
        others.cancel()
        return image

    assert asyncio.run(read()) == data
    assert turns > 20


def test_a_form_with_its_file_elsewhere_is_refused(client: TestClient, photo: bytes) -> None:
    elsewhere = client.post("/v1/captions", files={"photo": ("a.jpg", photo)})
    assert "'image'" in problem(elsewhere, 422)
    as_text = client.post("/v1/captions", files={"image": (None, "words")})
    assert "filename" in problem(as_text, 422)
    two = [("image", ("a.jpg", photo)), ("image", ("b.jpg", photo))]
    assert "files" in problem(client.post("/v1/captions", files=two), 400)


def test_what_is_not_there_is_a_problem_too(client: TestClient) -> None:
    assert "/v2/captions" in problem(client.get("/v2/captions"), 404)
    wrong = client.get("/v1/captions")
    assert "GET" in problem(wrong, 405)
    assert wrong.headers["allow"] == "POST"


def test_models_health_and_readiness_are_told(client: TestClient) -> None:
    models = client.get("/v1/models").json()["models"]
    assert [(m["name"], m["attention"]) for m in models] == [
        ("tiny", "soft"),
        ("tiny_hard", "hard"),
    ]
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready"}


def test_metrics_count_requests_by_route_and_photos_by_pass(
    client: TestClient, photo: bytes
) -> None:
    client.post("/v1/captions", content=photo, headers=JPEG)
    client.get("/some/strangers/path")
    text = client.get("/metrics").text
    assert 'captioner_requests_total{method="POST",path="/v1/captions",status="200"}' in text
    assert "strangers" not in text
    assert "captioner_batch_photos_count" in text
    assert "captioner_requests_in_progress 0.0" in text


def test_every_answer_carries_the_policy(client: TestClient) -> None:
    for address in ("/", "/v1/models", "/nowhere", "/page.js"):
        headers = client.get(address).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_the_page_is_whole_and_asks_nothing_of_another_host(client: TestClient) -> None:
    for address, _, _, media_type in PAGE:
        answer = client.get(address)
        assert answer.headers["content-type"] == media_type
        assert len(answer.content) > 200
        named = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in named
        assert "https://" not in named
    page = client.get("/").text
    assert " style=" not in page
    assert not re.search(r"\son\w+=", page)


def test_the_document_has_examples_and_names_no_other_host(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert {"/v1/captions", "/v1/scores", "/v1/models", "/health", "/ready", "/metrics"} <= set(
        document["paths"]
    )
    captions = document["paths"]["/v1/captions"]["post"]
    assert captions["responses"]["200"]["content"]["application/json"]["example"]["captions"]
    for status in ("413", "415", "422", "503", "504"):
        content = captions["responses"][status]["content"]
        assert content["application/problem+json"]["example"]["status"] == int(status)
    content = captions["requestBody"]["content"]
    assert set(content) >= {"multipart/form-data", "image/jpeg"}
    form = content["multipart/form-data"]["schema"]["properties"]
    assert set(form) == {"image", *(each["name"] for each in captions["parameters"])}
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


def test_a_token_is_asked_for_where_there_is_one(
    tiny_models: dict[str, Captioner], photo: bytes
) -> None:
    app = create_app(tiny_models, token="sesame-1")
    with TestClient(app, base_url=BASE) as client:
        for headers in (
            {},
            {"Authorization": "Bearer sesame"},
            {"Authorization": "Basic sesame-1"},
            {"Authorization": "Bearer sésame-1".encode()},
        ):
            for answer in (
                client.post("/v1/captions", content=photo, headers={**JPEG, **headers}),
                client.get("/v1/models", headers=headers),
                client.get("/metrics", headers=headers),
            ):
                assert "token" in problem(answer, 401)
                assert answer.headers["www-authenticate"] == "Bearer"
        given = {"Authorization": "Bearer sesame-1"}
        assert client.get("/v1/models", headers=given).status_code == 200
        answer = client.post("/v1/captions", content=photo, headers={**JPEG, **given})
        assert answer.status_code == 200
        for address in ("/", "/health", "/ready", "/openapi.json"):
            assert client.get(address).status_code == 200
        document = client.get("/openapi.json").json()
        assert document["paths"]["/v1/captions"]["post"]["security"] == [{"token": []}]


def test_a_page_of_another_name_that_points_here_reads_nothing(
    client: TestClient, tiny_models: dict[str, Captioner]
) -> None:
    for name in ("evil.example", "localhost.evil.example", "192.0.2.1"):
        assert "localhost" in problem(client.get("/v1/models", headers={"Host": name}), 421)
        for address in ("/", "/page.js", "/openapi.json", "/nowhere", "/health/", "/metrics"):
            problem(client.get(address, headers={"Host": name}, follow_redirects=False), 421)
        problem(client.post("/v1/captions/", headers={"Host": name}, follow_redirects=False), 421)
    app = create_app(tiny_models, allowed_hosts=[*LOOPBACK_HOSTS, "127.0.0.1"])  # as serve does
    with TestClient(app, base_url="http://evil.example") as other:
        assert problem(other.get("/health"), 421).count("127.0.0.1") == 1
    problem(client.get("/health", headers={"Host": "two names"}), 421)
    for name in ("localhost:8000", "127.0.0.1", "[::1]:8000", "captioner.localhost"):
        assert client.get("/v1/models", headers={"Host": name}).status_code == 200
    with TestClient(create_app(tiny_models, allowed_hosts=["*"]), base_url=BASE) as open_one:
        assert open_one.get("/health", headers={"Host": "photos.example"}).status_code == 200


OWN = BASE
ELSEWHERE = "https://elsewhere.example"


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),  # a program
        ({"Origin": OWN, "Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": OWN}, True),  # an older browser
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Origin": ELSEWHERE}, False),
        ({"Origin": ELSEWHERE, "Sec-Fetch-Site": "cross-site"}, False),
        ({"Origin": "http://127.0.0.1:9000", "Sec-Fetch-Site": "same-site"}, False),
        ({"Origin": "http://127.0.0.1:9000"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://[broken"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, False),  # a form
    ],
)
def test_pages_of_other_sites_can_post_nothing(
    client: TestClient, photo: bytes, headers: dict[str, str], allowed: bool
) -> None:
    sent = client.post("/v1/captions", content=photo, headers={**JPEG, **headers})
    read = client.get("/v1/models", headers=headers)
    if allowed:
        assert (sent.status_code, read.status_code) == (200, 200)
        return
    problem(sent, 403)
    if "navigate" not in headers.values():
        problem(read, 403)
    problem(client.post("/nowhere", headers=headers), 403)


def test_links_from_other_sites_can_be_followed(client: TestClient) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200


def test_an_origin_that_is_allowed_can_use_the_interface(
    tiny_models: dict[str, Captioner], photo: bytes
) -> None:
    app = create_app(tiny_models, allowed_origins=[ELSEWHERE])
    with TestClient(app, base_url=BASE) as client:
        site = {"Origin": ELSEWHERE, "Sec-Fetch-Site": "cross-site"}
        asking = {
            **site,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }
        for answer in (
            client.options("/v1/captions", headers=asking),
            client.post("/v1/captions", content=photo, headers={**JPEG, **site}),
        ):
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == ELSEWHERE
        other = {"Origin": "https://another.example", "Sec-Fetch-Site": "cross-site"}
        problem(client.post("/v1/captions", content=photo, headers={**JPEG, **other}), 403)


def test_a_caption_at_the_limit_is_scored_and_drawn(client: TestClient, photo: bytes) -> None:
    text = "disc " * 60
    assert client.post("/v1/scores", **form(photo, caption=text)).status_code == 200
    assert client.post("/v1/pictures", **form(photo, caption=text)).status_code == 200


def test_many_options_are_refused_in_linear_time(client: TestClient, photo: bytes) -> None:
    query = "&".join(["a=1"] * 13_500)
    answer = client.post(f"/v1/captions?{query}", content=photo, headers=JPEG)
    assert "more than 20 options" in problem(answer, 422)

    def seconds(count: int) -> float:
        options = [(f"option{number % (count // 2)}", "1") for number in range(count)]
        began = time.thread_time()
        with pytest.raises(Problem, match="given twice"):
            validate_options(CaptionOptions, options)
        return time.thread_time() - began

    assert min(seconds(20_000) for _ in range(3)) < 40 * min(seconds(2_000) for _ in range(5))


def test_a_body_of_a_caption_may_have_a_confidence() -> None:
    caption = CAPTION_EXAMPLE
    for value in (0.25, None):
        assert CaptionBody.model_validate({**caption, "confidence": value}).confidence == value
    assert CaptionBody.model_validate(caption).confidence is None
    assert "confidence" not in CaptionBody.model_json_schema()["required"]
    with pytest.raises(ValueError, match="confidence"):
        CaptionBody.model_validate({**caption, "confidence": 1.5})


@pytest.fixture
def limited(tiny_models: dict[str, Captioner]) -> Callable[..., TestClient]:
    def of(**limits: Any) -> TestClient:
        return TestClient(create_app(tiny_models, limits=Limits(**limits)), base_url=BASE)

    return of


def test_a_body_over_the_limit_is_413_whether_it_says_its_length_or_not(
    limited: Callable[..., TestClient], photo: bytes
) -> None:
    with limited(max_bytes=len(photo)) as client:
        assert client.post("/v1/captions", content=photo, headers=JPEG).status_code == 200
        over = photo + b"\0"
        assert "over the limit" in problem(
            client.post("/v1/captions", content=over, headers=JPEG), 413
        )
        in_pieces = client.post("/v1/captions", content=iter([photo, b"\0"]), headers=JPEG)
        assert "over the limit" in problem(in_pieces, 413)


def test_a_photo_of_too_many_pixels_is_422(
    limited: Callable[..., TestClient], photo: bytes
) -> None:
    with limited(max_pixels=60 * 48 - 1) as client:
        answer = client.post("/v1/captions", content=photo, headers=JPEG)
        assert "60 x 48 pixels" in problem(answer, 422)


class Held:
    """A model whose passes wait until they are let go."""

    def __init__(self, captioner: Captioner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        plain = captioner.n_best

        def held(*arguments: Any, **options: Any) -> Any:
            self.begun.set()
            assert self.go.wait(60)
            return plain(*arguments, **options)

        monkeypatch.setattr(captioner, "n_best", held)


def test_what_takes_too_long_is_504(
    limited: Callable[..., TestClient],
    tiny_models: dict[str, Captioner],
    photo: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Held(tiny_models["tiny"], monkeypatch)
    with limited(deadline_s=0.5) as client:
        answer = client.post("/v1/captions", content=photo, headers=JPEG)
        assert "0.5 s" in problem(answer, 504)
        held.go.set()


def test_a_full_server_says_when_to_come_back_and_answers_who_was_inside(
    limited: Callable[..., TestClient],
    tiny_models: dict[str, Captioner],
    photo: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Held(tiny_models["tiny"], monkeypatch)
    with limited(max_requests=2) as client:
        answers: list[Any] = []

        def ask() -> None:
            answers.append(client.post("/v1/captions", content=photo, headers=JPEG))

        inside = [threading.Thread(target=ask) for _ in range(2)]
        for thread in inside:
            thread.start()
        assert held.begun.wait(60)
        while client.app.state.service.admission.requests < 2:  # type: ignore[attr-defined]
            held.begun.wait(0.01)
        refused = client.post("/v1/captions", content=photo, headers=JPEG)
        assert "try again" in problem(refused, 503)
        assert int(refused.headers["retry-after"]) >= 1
        problem(client.get("/ready"), 503)
        assert client.get("/health").status_code == 200
        held.go.set()
        for thread in inside:
            thread.join()
        assert [answer.status_code for answer in answers] == [200, 200]
        assert client.get("/ready").status_code == 200
        assert "captioner_requests_refused_total 1.0" in client.get("/metrics").text


def test_a_mistake_of_the_server_is_a_problem_that_tells_nothing(
    tiny_models: dict[str, Captioner], photo: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("a secret")

    monkeypatch.setattr(tiny_models["tiny"], "n_best", broken)
    with TestClient(
        create_app(tiny_models), base_url=BASE, raise_server_exceptions=False
    ) as client:
        answer = client.post("/v1/captions", content=photo, headers=JPEG)
        assert "secret" not in problem(answer, 500)
        hard = client.post("/v1/captions?model=tiny_hard", content=photo, headers=JPEG)
        assert hard.status_code == 200, "it goes on"


def test_captions_of_one_photo_are_the_same_in_python_rest_and_on_the_command_line(
    client: TestClient, tiny_model: Path, commands: Any, drawn_photos: Path
) -> None:
    photos = [drawn_photos / f"{number:02d}.jpg" for number in range(6)]
    options = ["--checkpoint", tiny_model, "--device", "cpu", "--json", "--beam-size", 2]
    outcome = commands.run("captioner", "caption", *photos, *options)
    lines = [json.loads(line) for line in outcome.stdout.splitlines()]
    python = Captioner.from_pretrained(tiny_model, device="cpu")
    for photo, line in zip(photos, lines, strict=True):
        with photo.open("rb") as file:
            answer = client.post("/v1/captions?beam_size=2", content=file.read(), headers=JPEG)
        texts = {
            line["caption"],
            answer.json()["captions"][0]["caption"],
            python.caption(open_image(photo), beam_size=2).text,
        }
        assert len(texts) == 1, texts


class Visitor:
    """A client of the application itself, which may leave.

    Args:
        path: with the query.
        body: the pieces that arrive.
        complete: whether they are the complete body. After them the client leaves as soon as
            `leave` is set.
    """

    def __init__(self, path: str, body: list[bytes], *, complete: bool) -> None:
        self.path, self.body, self.complete = path, list(body), complete
        self.statuses: list[int] = []
        self.leave = asyncio.Event()

    async def visit(self, app: FastAPI) -> None:
        path, _, query = self.path.partition("?")
        await app(
            {
                "type": "http",
                "asgi": {"version": "3.0"},
                "http_version": "1.1",
                "method": "POST",
                "scheme": "http",
                "path": path,
                "raw_path": path.encode(),
                "query_string": query.encode(),
                "root_path": "",
                "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"image/jpeg")],
                "client": ("127.0.0.1", 50000),
                "server": ("127.0.0.1", 8000),
            },
            self.receive,
            self.send,
        )

    async def receive(self) -> Any:
        if self.body:
            piece = self.body.pop(0)
            more = bool(self.body) or not self.complete
            return {"type": "http.request", "body": piece, "more_body": more}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])


def test_a_client_that_leaves_during_its_upload_is_no_error(
    tiny_models: dict[str, Captioner], photo: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(tiny_models)

    async def run() -> Visitor:
        async with app.router.lifespan_context(app):
            visitor = Visitor("/v1/captions", [photo[:50]], complete=False)
            visitor.leave.set()
            await visitor.visit(app)
            return visitor

    visitor = asyncio.run(run())
    assert visitor.statuses == [499]
    assert caplog.text == ""
    text = app.state.service.metrics.text().decode()
    assert 'captioner_requests_total{method="POST",path="/v1/captions",status="499"} 1.0' in text


def test_a_client_that_leaves_costs_no_pass_of_the_model(
    tiny_models: dict[str, Captioner], photo: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    captioner = tiny_models["tiny"]
    begun, go = threading.Event(), threading.Event()
    scored: list[str] = []
    plain = captioner.score

    def held(image: Any, text: str, **options: Any) -> Any:
        begun.set()
        assert go.wait(60)
        scored.append(text)
        return plain(image, text, **options)

    monkeypatch.setattr(captioner, "score", held)
    app = create_app(tiny_models)

    async def run() -> list[list[int]]:
        async with app.router.lifespan_context(app):
            visitors = [
                Visitor(f"/v1/scores?caption={text}", [photo], complete=True)
                for text in ("first", "second", "third")
            ]
            visits = []
            for visitor in visitors:
                visits.append(asyncio.create_task(visitor.visit(app)))
                await asyncio.to_thread(begun.wait, 60)
            while app.state.service.admission.requests < 3:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)  # the second and the third wait for the model by now
            visitors[1].leave.set()
            await asyncio.wait_for(visits[1], 10)
            go.set()
            await asyncio.gather(*visits)
            return [visitor.statuses for visitor in visitors]

    assert asyncio.run(run()) == [[200], [499], [200]]
    assert scored == ["first", "third"]


def test_unfinished_uploads_keep_nobody_out(
    tiny_models: dict[str, Captioner], photo: bytes
) -> None:
    app = create_app(tiny_models, limits=Limits(max_requests=4))

    async def run() -> tuple[list[int], int]:
        async with app.router.lifespan_context(app):
            stalled = [Visitor("/v1/captions", [photo[:50]], complete=False) for _ in range(128)]
            visits = [asyncio.create_task(visitor.visit(app)) for visitor in stalled]
            await asyncio.sleep(0.1)
            in_progress = app.state.service.admission.in_progress
            honest = Visitor("/v1/captions", [photo], complete=True)
            await honest.visit(app)
            for visitor in stalled:
                visitor.leave.set()
            await asyncio.gather(*visits)
            return honest.statuses, in_progress

    assert asyncio.run(run()) == ([200], 128)
