"""Whatever the OpenAPI document allows, the service answers it or refuses it; it never breaks."""

from __future__ import annotations

import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from serving import Running
from serving_fixtures import reading
from siglum.serve.errors import STATUS

PLACES = {"/search", "/dense", "/explain", "/items", "/items/remove", "/items/{item_id}", "/items/{item_id}/image"}


OPERATIONS = [
    *(f"POST {place}" for place in ("/search", "/dense", "/explain", "/items", "/items/remove")),
    *(f"GET {place}" for place in ("/items", "/items/{item_id}", "/items/{item_id}/image", "/health", "/ready")),
    *("GET /metrics", "GET /about", "DELETE /items/{item_id}"),
]


@pytest.fixture(scope="module")
def operations(reading: Running) -> dict[str, Any]:
    schema = schemathesis.openapi.from_url(f"{reading.address}/openapi.json")
    found = [one.ok() for one in schema.get_all_operations()]
    return {operation.label: operation for operation in found}


def test_every_operation_is_tried(operations: dict[str, Any]) -> None:
    assert set(operations) == set(OPERATIONS)


@pytest.mark.parametrize("label", OPERATIONS)
def test_nothing_that_the_document_allows_breaks_the_service(operations: dict[str, Any], label: str) -> None:
    @settings(max_examples=20, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=operations[label].as_strategy())
    def ask(case: Any) -> None:
        answer = case.call(timeout=30)
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400:
            error = json.loads(answer.text)["error"]
            assert error["code"] in STATUS and error["message"].endswith(".")
        assert "nosniff" in str(answer.headers)

    ask()


def test_the_document_tells_of_all_endpoints_and_types(reading: Running) -> None:
    told = reading.http.get("/openapi.json").json()
    assert set(told["paths"]) >= {*PLACES, "/health", "/ready", "/metrics", "/about"}
    assert {"SearchBody", "QueryBody", "FeaturesBody", "HitBody", "ErrorReply"} <= set(told["components"]["schemas"])
    body = told["paths"]["/search"]["post"]["requestBody"]["content"]
    assert set(body) == {"application/json", "multipart/form-data"}
    assert "$defs" not in json.dumps(told)
