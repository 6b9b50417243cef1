"""The service keeps to its own OpenAPI document, whatever is sent (schemathesis)."""

from __future__ import annotations

import io

import pytest
import schemathesis
import tiny
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from serving_tools import BASE
from starlette.testclient import TestClient

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def photos() -> st.SearchStrategy[bytes]:
    """Photos, photos cut short, and bytes of any kind."""
    file = io.BytesIO()
    tiny.photo(1)[0].save(file, format="JPEG")
    whole = file.getvalue()
    cut = st.integers(0, len(whole)).map(lambda length: whole[:length])
    return st.one_of(st.just(whole), cut, st.binary(max_size=2000))


schemathesis.openapi.format("binary", photos())


@pytest.fixture
def api_schema(client: TestClient) -> schemathesis.BaseSchema:
    schema = schemathesis.openapi.from_asgi("/openapi.json", client.app)
    schema.config.update(base_url=BASE)
    return schema


schema = schemathesis.pytest.from_fixture("api_schema")


@schema.parametrize()
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_server_error_and_no_answer_outside_the_document(
    case: schemathesis.Case, client: TestClient
) -> None:
    response = case.call(session=client)
    case.validate_response(response, checks=CHECKS)
