from __future__ import annotations

import socket
from contextlib import nullcontext
from pathlib import Path

import pytest

from serving import Running, running
from serving_fixtures import reading
from siglum.serve.settings import ApiKey, ServeConfig, from_environment
from siglum.types import SiglumError

KEY = "0123456789abcdef0123456789abcdef"
ASK = {"queries": [{"text": "a star"}]}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key.txt"
    path.write_text(f"{KEY}\n")
    return path


def test_a_key_for_everything(run_copy: Path, key_file: Path) -> None:
    with running(run_copy, api_key_file=key_file) as one:
        for place in ("/health", "/ready", "/", "/app.js", "/style.css"):
            assert one.http.get(place).status_code == 200
        for headers in ({}, {"authorization": f"Bearer {KEY}x"}, {"authorization": f"Basic {KEY}"}, {"x-api-key": ""}):
            answer = one.http.post("/search", json=ASK, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorised")
            assert answer.headers["www-authenticate"] == "Bearer"
        for place in ("/about", "/items", "/metrics", "/openapi.json"):
            assert one.http.get(place).status_code == 401
        for headers in ({"authorization": f"Bearer {KEY}"}, {"authorization": f"bearer {KEY}"}, {"x-api-key": KEY}):
            assert one.http.post("/search", json=ASK, headers=headers).status_code == 200


def test_a_key_for_writes_alone(run_copy: Path, key_file: Path) -> None:
    with running(run_copy, api_key_file=key_file, api_key_for="writes") as one:
        assert one.http.post("/search", json=ASK).status_code == 200
        assert one.http.get("/items").status_code == 200
        body = {"items": [{"id": "a", "text": "a zebra"}]}
        assert one.http.post("/items", json=body).status_code == 401
        assert one.http.delete("/items/a").status_code == 401
        assert one.http.post("/items", json=body, headers={"x-api-key": KEY}).status_code == 200
        told = one.http.get("/openapi.json").json()
        assert told["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


def test_a_key_is_long_and_kept_as_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_text("secret\n")
    with pytest.raises(SiglumError, match="at least 16 plain characters"):
        ApiKey.read(path)
    key = ApiKey(KEY)
    assert key.fits(KEY.encode()) and not key.fits(b"") and KEY not in str(vars(key))


def test_only_own_names_and_origins_are_served(reading: Running) -> None:
    assert reading.http.get("/about", headers={"host": "evil.example"}).status_code == 403
    assert reading.http.get("/about", headers={"host": "localhost:1"}).status_code == 200
    assert reading.http.get("/health", headers={"host": "10.0.0.7:8000"}).status_code == 200
    own = reading.address
    for origin, status in ((own, 200), ("https://evil.example", 403), ("null", 403), (f"{own}0", 403)):
        answer = reading.http.post("/search", json=ASK, headers={"origin": origin})
        assert answer.status_code == status
        assert "access-control-allow-origin" not in answer.headers


def test_origins_that_are_named_may_use_it(run_copy: Path) -> None:
    with running(run_copy, cors_origins=("https://shop.example",), read_only=True) as one:
        headers = {"origin": "https://shop.example"}
        answer = one.http.post("/search", json=ASK, headers=headers)
        assert answer.headers["access-control-allow-origin"] == "https://shop.example"
        before = one.http.options("/search", headers={**headers, "access-control-request-method": "POST"})
        assert before.status_code == 200
        other = one.http.options(
            "/search", headers={"origin": "https://evil.example", "access-control-request-method": "POST"}
        )
        assert other.status_code == 400 and "access-control-allow-origin" not in other.headers


def test_the_page_may_load_nothing_but_its_own(reading: Running) -> None:
    policy = reading.http.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy
    assert "server" not in reading.http.get("/").headers


def test_a_body_has_its_limit(reading: Running) -> None:
    answer = reading.http.post("/search", content=b"x" * ((4 << 20) + 1), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")

    def pieces() -> object:
        for _ in range(80):
            yield b" " * 65_536

    answer = reading.http.post("/search", content=pieces(), headers={"content-type": "application/json"})  # type: ignore[arg-type]
    assert answer.status_code == 413
    form = {"image": ("a.png", b"x" * (5 << 20))}
    assert reading.http.post("/search", data={"text": "a"}, files=form).status_code == 413
    assert reading.http.get("/health").status_code == 200


def test_who_sends_too_slowly_is_let_go(run_copy: Path) -> None:
    with running(run_copy, read_only=True, timeout=0.3) as one:
        host, port = one.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 5) as wire:
            head = (
                f"POST /search HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n"
            )
            wire.sendall(head.encode() + b'{"queries"')
            assert b"408" in wire.recv(4096)


def test_too_many_requests_at_once_are_refused(run_copy: Path) -> None:
    with running(run_copy, read_only=True, connections=1) as one:
        host, port = one.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 5) as wire:
            wire.sendall(
                f"POST /search HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
                f"content-length: 99\r\n\r\n".encode()
            )
            answer = None
            for _ in range(50):
                answer = one.http.get("/health")
                if answer.status_code == 503:
                    break
            assert answer is not None and answer.json()["error"]["code"] == "overloaded"


def test_requests_can_be_traced(run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    spans: list[str] = []

    class Tracer:
        def start_as_current_span(self, name: str) -> object:
            spans.append(name)
            return nullcontext()

    monkeypatch.setattr(trace, "get_tracer", lambda name: Tracer())
    with running(run_copy, read_only=True, tracing=True) as one:
        assert one.http.post("/search", json=ASK).status_code == 200
        one.http.get("/items/s0000000-i/image")
    assert spans == ["POST /search", "GET /items"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"host": "0.0.0.0"}, "anyone who reaches 0.0.0.0 could change the index"),
        ({"port": 70000}, "port is 70000"),
        ({"batch": 0}, "batch must be a whole number of at least 1"),
        ({"timeout": 0.0}, "timeout is 0.0"),
        ({"cors_origins": ("*",)}, "an origin is written"),
        ({"cors_origins": ("https://a.example/",)}, "an origin is written"),
    ],
)
def test_settings_that_no_service_can_have_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(SiglumError, match=said):
        ServeConfig(**settings).check()  # type: ignore[arg-type]


def test_settings_come_from_the_environment() -> None:
    found = from_environment(
        {
            "SIGLUM_SERVE_PORT": "9000",
            "SIGLUM_SERVE_READ_ONLY": "True",
            "SIGLUM_SERVE_CORS_ORIGINS": "https://a.example, https://b.example",
            "SIGLUM_SERVE_TIMEOUT": "2.5",
            "SIGLUM_SERVE_API_KEY_FILE": "/run/secrets/key",
            "SIGLUM_SERVE_LOG": "text",
            "PATH": "/bin",
        }
    )
    assert (found.port, found.read_only, found.timeout, found.log) == (9000, True, 2.5, "text")
    assert found.cors_origins == ("https://a.example", "https://b.example")
    assert found.api_key_file == Path("/run/secrets/key")
    with pytest.raises(SiglumError, match="there is no setting SIGLUM_SERVE_PROT; the settings are"):
        from_environment({"SIGLUM_SERVE_PROT": "1"})
    with pytest.raises(SiglumError, match=r"ServeConfig.port is 'many'"):
        from_environment({"SIGLUM_SERVE_PORT": "many"})
    with pytest.raises(SiglumError, match="must be one of: json, text"):
        from_environment({"SIGLUM_SERVE_LOG": "xml"})
