from __future__ import annotations

import json
import sys
from pathlib import Path

import httpx
import pytest

from serving import Running
from serving_fixtures import reading

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from serve_fuzz import send
from servelib.malformed import request


def test_malformed_requests_are_refused_and_the_service_is_well(reading: Running) -> None:
    """The first of those that `benchmarks/serve_fuzz.py` sends."""
    statuses = [send(reading.address, request(number)) for number in range(250)]
    assert {number: status for number, status in enumerate(statuses) if status >= 500 or status == 0} == {}
    assert sum(status >= 400 for status in statuses) > 150
    assert reading.http.get("/ready").is_success
    assert len(reading.search(text="a big red star", k=3)) == 3


@pytest.mark.parametrize("number", range(0, 250, 50))
def test_refusals_are_sentences(reading: Running, number: int) -> None:
    method, path, headers, body = request(number)
    answer = httpx.request(
        method, reading.address + path, headers={n: v for n, v in headers.items() if v}, content=body
    )
    if answer.status_code >= 400 and method != "HEAD":
        error = json.loads(answer.text)["error"]
        assert error["message"].endswith(".") and len(error["message"]) < 600
