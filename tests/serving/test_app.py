"""The REST interface, asked without a socket."""

from __future__ import annotations

import base64
import io
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
from PIL import Image
from serving_tools import BASE
from starlette.testclient import TestClient

from captioner import Captioner
from captioner.errors import ImageError
from captioner.serving.app import create_app
from captioner.serving.requests import Limits

JPEG = {"Content-Type": "image/jpeg"}
OCTETS = "application/octet-stream"
Models = dict[str, Captioner]
Limited = Callable[..., TestClient]


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


def encoded(photo: bytes) -> str:
    return base64.b64encode(photo).decode()


def rounded(values: Any) -> Any:
    return pytest.approx(values, abs=2e-5)


@pytest.mark.parametrize("options", [{}, {"beam_size": 1}, {"model": "tiny_hard", "beam_size": 2}])
def test_form_json_and_raw_bytes_are_captioned_as_in_python(
    client: TestClient, tiny_models: Models, drawn_photos: Path, options: Any
) -> None:
    texts = set()
    for number in (1, 8, 10):
        photo = (drawn_photos / f"{number:02d}.jpg").read_bytes()
        captioner = tiny_models[options.get("model", "tiny")]
        expected = captioner.caption(photo, beam_size=options.get("beam_size")).to_dict(maps=True)
        asked = {**options, "maps": "true"}
        raw = client.post("/v1/captions", content=photo, params=asked, headers=JPEG)
        sent = client.post("/v1/captions", **form(photo, **asked))
        as_json = client.post(
            "/v1/captions", json={"image": encoded(photo), **options, "maps": True}
        )
        assert raw.status_code == sent.status_code == as_json.status_code == 200, raw.text
        assert raw.json() == sent.json() == as_json.json()
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
    assert len(texts) == 3


def test_captions_are_sampled_and_bounded_as_in_python(
    client: TestClient, tiny_models: Models, photo: bytes
) -> None:
    sampling = {"num_captions": 4, "temperature": 0.8, "top_p": 0.9, "max_words": 5}
    sampling["seed"] = 2**63 - 1  # as large as the command takes it
    answer = client.post("/v1/captions", **form(photo, sample="true", **sampling)).json()
    captioner = tiny_models["tiny"]
    (expected,) = captioner.captions([photo], captioner.options(sample=True, **sampling))
    assert [caption["words"] for caption in answer["captions"]] == [c.words for c in expected]
    assert all(len(caption["words"]) <= 5 for caption in answer["captions"])
    cells = {"model": "tiny_hard", "at_test": "sample", "seed": 7}
    with ThreadPoolExecutor(4) as threads:  # a seed draws the same whoever else asks
        asked = [
            threads.submit(client.post, "/v1/captions", **form(photo, **cells)) for _ in "12345678"
        ]
    assert len({each.result().text for each in asked}) == 1
    longer = client.post("/v1/captions", **form(photo, min_words=9)).json()
    assert len(longer["captions"][0]["words"]) >= 9


def test_given_caption_is_scored_as_in_python(
    client: TestClient, tiny_models: Models, photo: bytes
) -> None:
    text = "A red disc, on the table!"
    expected = tiny_models["tiny"].score(photo, text)
    answer = client.post("/v1/scores", **form(photo, caption=text, maps="true")).json()
    assert answer["caption"]["words"] == expected.words
    assert answer["caption"]["log_probs"] == rounded(expected.log_probs.tolist())
    assert answer["unknown_words"] == ["table"]
    assert answer["log_prob"] == rounded(float(expected.log_probs.sum()) + expected.end_log_prob)
    raw = client.post("/v1/scores", content=photo, headers=JPEG, params={"caption": text})
    assert raw.json()["log_prob"] == answer["log_prob"]


def test_pictures_are_drawn_in_every_format(client: TestClient, photo: bytes) -> None:
    sheet = client.post("/v1/pictures", **form(photo))
    assert sheet.headers["content-type"] == "image/png"
    assert "attachment" in sheet.headers["content-disposition"]
    assert Image.open(io.BytesIO(sheet.content)).width > 500
    page = client.post("/v1/pictures", **form(photo, format="html", caption="a red disc"))
    assert page.headers["content-type"].startswith("text/html")
    assert "a red disc" in page.text
    animation = client.post("/v1/pictures", **form(photo, format="gif"))
    assert getattr(Image.open(io.BytesIO(animation.content)), "n_frames", 1) > 1
    svg = client.post("/v1/pictures", **form(photo, format="svg"))
    assert svg.headers["content-type"] == "image/svg+xml"
    assert "</svg>" in svg.text
    assert client.post("/v1/pictures", **form(photo, format="pdf")).content.startswith(b"%PDF")
    assert client.post("/v1/pictures", **form(photo, style="contour")).content != sheet.content


def test_several_photos_are_answered_in_their_order(client: TestClient, drawn_photos: Path) -> None:
    photos = [(drawn_photos / f"{number:02d}.jpg").read_bytes() for number in range(3)]
    alone = [client.post("/v1/captions", content=photo, headers=JPEG).json() for photo in photos]
    files = [("image", (f"{n}.jpg", photo)) for n, photo in enumerate(photos)]
    files.insert(1, ("image", ("broken.jpg", photos[0][:200])))
    files.insert(2, ("image", ("none.jpg", b"")))
    answers = client.post("/v1/captions", files=files).json()["photos"]
    names = ["0.jpg", "broken.jpg", "none.jpg", "1.jpg", "2.jpg"]
    assert [answer["image"] for answer in answers] == names
    for said in ("damaged", "empty file"):
        broken = answers.pop(1)["error"]
        assert (broken["status"], said in broken["detail"]) == (422, True)
    assert [answer["captions"][0]["words"] for answer in answers] == [
        answer["captions"][0]["words"] for answer in alone
    ]
    data_url = f"data:image/jpeg;base64,{encoded(photos[0])}"
    wrapped = base64.encodebytes(photos[1]).decode()
    of_urls = base64.urlsafe_b64encode(photos[2]).decode()
    content = {"image": [data_url, wrapped, of_urls, "words!"], "caption": "a red disc"}
    *scores, bad = client.post("/v1/scores", json=content).json()["photos"]
    assert [len(answer["caption"]["words"]) for answer in scores] == [3, 3, 3]
    assert "photo 4 is neither base64" in bad["error"]["detail"]
    one = client.post("/v1/captions", json={"image": [data_url]}).json()
    assert len(one["photos"]) == 1, "a list is answered by a list"
    assert "one photo" in problem(client.post("/v1/pictures", json=content), 422)
    unknown = client.post("/v1/captions", files=files, data={"model": "none"})
    assert "no model 'none'" in problem(unknown, 422)
    many = client.post("/v1/captions", json={"image": [data_url] * 17})
    assert "at most 16 photos" in problem(many, 422)


def test_addresses_are_fetched_only_where_the_server_may(
    client: TestClient, limited: Limited, photo: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "https://photos.example/a.jpg"
    asked = []

    def fetch(url: str, max_bytes: int, timeout: float) -> bytes:
        asked.append((url, max_bytes))
        if "missing" in url:
            raise ImageError("cannot be fetched: the site answers 404 Not Found")
        return photo

    monkeypatch.setattr("captioner.serving.app.fetch_image", fetch)
    assert "--allow-urls" in problem(client.post("/v1/captions", json={"image": url}), 422)
    assert not asked
    with limited(allow_urls=True, max_bytes=10**6) as open_one:
        expected = client.post("/v1/captions", content=photo, headers=JPEG).json()
        assert open_one.post("/v1/captions", json={"image": url}).json() == expected
        assert open_one.post("/v1/captions", files={"image": (None, url)}).json() == expected
        assert asked == [(url, 10**6)] * 2
        missing = open_one.post("/v1/captions", json={"image": "https://photos.example/missing"})
        assert "404" in problem(missing, 422)


@pytest.mark.parametrize(
    ("address", "fields", "told"),
    [
        ("captions", {"beam_size": 0}, "beam_size"),
        ("captions", {"beam_size": 2, "num_captions": 3}, "at most beam_size"),
        ("captions", {"seed": 3}, "seed: is for captions drawn at random"),
        ("captions", {"model": "none"}, "there is no model 'none'; use tiny or tiny_hard"),
        ("captions", {"at_test": "argmax"}, "hard attention"),
        ("captions", {"beam": 3}, "there is no such option"),
        ("scores", {"caption": "?!"}, "has 0 words"),
        ("scores", {"caption": "a " * 61}, "61 words"),
        ("pictures", {"format": "bmp"}, "format"),
    ],
)
def test_unusable_option_is_named(
    client: TestClient, photo: bytes, address: str, fields: dict[str, Any], told: str
) -> None:
    for answer in (
        client.post(f"/v1/{address}", **form(photo, **fields)),
        client.post(f"/v1/{address}", content=photo, headers=JPEG, params=fields),
    ):
        assert told in problem(answer, 422)
        assert all(each["name"] for each in answer.json()["errors"])


@pytest.mark.parametrize(
    ("content", "media_type", "status", "told"),
    [
        (b"words", "image/jpeg", 422, "known format"),
        (b"words", "text/plain", 415, "multipart/form-data"),
        (b"words", "multipart/form-data; boundary=x", 400, "multipart"),
        (b"{", "application/json", 400, "JSON object"),
    ],
)
def test_body_without_a_photo_is_refused(
    client: TestClient, content: bytes, media_type: str, status: int, told: str
) -> None:
    answer = client.post("/v1/captions", content=content, headers={"Content-Type": media_type})
    assert told.lower() in problem(answer, status).lower()


def test_models_health_and_readiness_are_reported(client: TestClient) -> None:
    models = client.get("/v1/models").json()["models"]
    assert [(m["name"], m["attention"]) for m in models] == [
        ("tiny", "soft"),
        ("tiny_hard", "hard"),
    ]
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready"}


def test_metrics_count_requests_and_batches(client: TestClient, photo: bytes) -> None:
    client.post("/v1/captions", content=photo, headers=JPEG)
    client.get("/some/strangers/path")
    text = client.get("/metrics").text
    assert re.search(r'captioner_http_requests_total{.*/v1/captions.*status="200"} [1-9]', text)
    assert "strangers" not in text
    assert "captioner_batch_photos_count" in text


def test_every_answer_has_security_headers(client: TestClient) -> None:
    for address in ("/", "/v1/models", "/nowhere", "/page.js"):
        headers = client.get(address).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_openapi_describes_requests_answers_and_problems(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert {"/v1/captions", "/v1/scores", "/v1/models", "/health", "/ready", "/metrics"} <= set(
        document["paths"]
    )
    captions = document["paths"]["/v1/captions"]["post"]
    answer = captions["responses"]["200"]["content"]["application/json"]["schema"]["anyOf"][0]
    assert answer == {"$ref": "#/components/schemas/CaptionsAnswer"}
    for statuses in ("4XX", "5XX"):
        assert set(captions["responses"][statuses]["content"]) == {"application/problem+json"}
    content = captions["requestBody"]["content"]
    assert set(content) == {"multipart/form-data", "application/json", "image/*", OCTETS}
    for media_type in ("multipart/form-data", "application/json"):
        properties = content[media_type]["schema"]["properties"]
        assert set(properties) == {"image", *(each["name"] for each in captions["parameters"])}
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


def test_token_is_required(tiny_models: Models, photo: bytes) -> None:
    app = create_app(tiny_models, token="sesame-1")
    with TestClient(app, base_url=BASE) as client:
        for headers in (
            {},
            {"Authorization": "Bearer sesame"},
            {"Authorization": "Basic sesame-1"},
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


def test_other_host_names_are_refused(client: TestClient, tiny_models: Models) -> None:
    for name in ("evil.example", "localhost.evil.example", "192.0.2.1", "two names"):
        for address in ("/", "/page.js", "/openapi.json", "/nowhere", "/metrics", "/v1/models"):
            assert client.get(address, headers={"Host": name}).status_code == 400
        assert client.post("/v1/captions", headers={"Host": name}).status_code == 400
    for name in ("localhost:8000", "127.0.0.1", "[::1]:8000", "captioner.localhost"):
        assert client.get("/v1/models", headers={"Host": name}).status_code == 200
    with TestClient(create_app(tiny_models, allowed_hosts=["*"]), base_url=BASE) as open_one:
        assert open_one.get("/health", headers={"Host": "photos.example"}).status_code == 200


ELSEWHERE = "https://elsewhere.example"


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),  # a program
        ({"Origin": BASE, "Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": BASE}, True),  # an older browser
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Origin": ELSEWHERE, "Sec-Fetch-Site": "cross-site"}, False),
        ({"Origin": "http://127.0.0.1:9000"}, False),
        ({"Origin": "null"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, False),  # a form
    ],
)
def test_pages_of_other_sites_are_refused(
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


def test_allowed_origin_can_use_the_interface(tiny_models: Models, photo: bytes) -> None:
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


@pytest.fixture
def limited(tiny_models: Models) -> Callable[..., TestClient]:
    def of(**limits: Any) -> TestClient:
        return TestClient(create_app(tiny_models, limits=Limits(**limits)), base_url=BASE)

    return of


def test_body_over_the_limit_is_413(limited: Limited, photo: bytes) -> None:
    with limited(max_bytes=len(photo)) as client:
        assert client.post("/v1/captions", content=photo, headers=JPEG).status_code == 200
        over = photo + b"\0"
        assert "over the limit" in problem(
            client.post("/v1/captions", content=over, headers=JPEG), 413
        )
        in_pieces = client.post("/v1/captions", content=iter([photo, b"\0"]), headers=JPEG)
        assert "over the limit" in problem(in_pieces, 413)


class Held:
    """A model whose passes wait until they are let go."""

    def __init__(self, captioner: Captioner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        plain = captioner.captions

        def held(*arguments: Any, **options: Any) -> Any:
            assert self.go.wait(60)
            return plain(*arguments, **options)

        monkeypatch.setattr(captioner, "captions", held)


def test_answer_after_the_deadline_is_504(
    limited: Limited, tiny_models: Models, photo: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(tiny_models["tiny"], monkeypatch)
    with limited(deadline_s=0.5) as client:
        assert "0.5 s" in problem(client.post("/v1/captions", content=photo, headers=JPEG), 504)
        held.go.set()


def test_full_server_answers_503_and_finishes_its_requests(
    limited: Limited, tiny_models: Models, photo: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(tiny_models["tiny"], monkeypatch)
    with limited(max_requests=2) as client:
        answers: list[Any] = []

        def ask() -> None:
            answers.append(client.post("/v1/captions", content=photo, headers=JPEG))

        inside = [threading.Thread(target=ask) for _ in range(2)]
        for thread in inside:
            thread.start()
        end = time.monotonic() + 60
        while client.get("/ready").status_code == 200:
            assert time.monotonic() < end
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


def test_body_that_does_not_arrive_is_408(tiny_models: Models) -> None:
    app = create_app(tiny_models, limits=Limits(deadline_s=0.2))
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"image/jpeg")]
    scope = {"type": "http", "method": "POST", "path": "/v1/captions", "headers": headers}
    scope |= {"query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1"}
    anyio.run(app, scope, receive, send)
    assert sent[0]["status"] == 408


def test_unforeseen_error_is_500_without_details(
    tiny_models: Models, photo: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("a secret")

    monkeypatch.setattr(tiny_models["tiny"], "captions", broken)
    with TestClient(
        create_app(tiny_models), base_url=BASE, raise_server_exceptions=False
    ) as client:
        answer = client.post("/v1/captions", content=photo, headers=JPEG)
        assert "secret" not in problem(answer, 500)
        hard = client.post("/v1/captions?model=tiny_hard", content=photo, headers=JPEG)
        assert hard.status_code == 200, "it goes on"
