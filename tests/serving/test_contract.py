"""The service keeps to its own OpenAPI document, whatever is sent (schemathesis)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
import tiny
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from programs import Programs
from schemathesis.specs.openapi.checks import positive_data_acceptance
from serving_tools import started

from captioner.serving.app import create_app

PHOTO = tiny.encoded(tiny.photo(1)[0], "JPEG")
CUT_SHORT = st.integers(0, len(PHOTO)).map(lambda length: PHOTO[:length])
schemathesis.openapi.format(
    "binary", st.one_of(st.just(PHOTO), st.just(PHOTO), CUT_SHORT, st.binary(max_size=2000))
)


@pytest.fixture(scope="module")
def address(programs: Programs, tiny_model: Path, tiny_hard_model: Path) -> Iterator[str]:
    with started(programs, "--checkpoint", tiny_model, "--checkpoint", tiny_hard_model) as served:
        yield served[0]


schema = schemathesis.openapi.from_dict(create_app({}).openapi())


@schema.parametrize()
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_server_error_and_no_answer_outside_the_document(
    case: schemathesis.Case, address: str
) -> None:
    # A schema cannot say which bytes are a photo, so that rightly refused ones look acceptable.
    case.call_and_validate(base_url=address, excluded_checks=[positive_data_acceptance])


@pytest.mark.parametrize(
    ("operation", "options"),
    [
        ("captions", {"num_captions": "2", "maps": "true"}),
        ("scores", {"caption": "a red square", "maps": "true"}),
        ("pictures", {"format": "gif"}),
    ],
)
def test_what_is_rightly_asked_is_answered_as_the_document_says(
    address: str, operation: str, options: dict[str, str]
) -> None:
    case = schema[f"/v1/{operation}"]["POST"].Case(
        media_type="multipart/form-data", body={"image": [PHOTO], **options}
    )
    assert case.call_and_validate(base_url=address).status_code == 200
