"""The files to deploy the service with say what the service knows."""

from __future__ import annotations

import configparser
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from siglum.cli.serve import Command
from siglum.console.commands import call
from siglum.serve.settings import PREFIX, ServeConfig

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SETTINGS = {field.name for field in fields(ServeConfig)}


@pytest.mark.parametrize(
    "file", ["deploy/Dockerfile", "deploy/siglum.service", "deploy/compose.yaml", "docs/deploy.md"]
)
def test_settings_named_are_settings(file: str) -> None:
    text = (ROOT / file).read_text()
    assert {name.lower() for name in re.findall(rf"{PREFIX}(\w+)", text)} <= SETTINGS
    flags = {flag.replace("-", "_") for flag in re.findall(r"`--([a-z-]+)", text)}
    assert flags - {"build_arg"} <= SETTINGS | {"wait", "device"}


def test_the_documentation_names_every_setting() -> None:
    told = (ROOT / "docs" / "deploy.md").read_text() + (ROOT / "docs" / "serve.md").read_text()
    missing = {name for name in SETTINGS if f"--{name.replace('_', '-')}" not in told}
    assert missing <= {"connections", "decoders", "picture_cache"}


def test_the_image_runs_without_root_and_tells_its_health() -> None:
    lines = (DEPLOY / "Dockerfile").read_text()
    last = lines.rpartition("\nFROM ")[2]
    assert "\nUSER 10001" in last and "HEALTHCHECK" in last and 'ENTRYPOINT ["siglum", "serve"]' in last
    for copied in re.findall(r"^COPY (?!--from)(.+) \S+$", lines, re.M):
        assert all((ROOT / name).exists() for name in copied.split())


def test_the_compose_file_takes_rights_away() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"siglum", "siglum-gpu"}
    for service in services.values():
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
        assert service["ports"] == ["127.0.0.1:8000:8000"] and service["secrets"] == ["siglum_key"]


def test_the_unit_reloads_and_is_confined() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "siglum.service")
    service = unit["Service"]
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID" and service["NoNewPrivileges"] == "yes"
    assert service["ReadWritePaths"] == "/srv/siglum" and "siglum serve" in service["ExecStart"]


def test_without_its_packages_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from siglum.cli.serve import run

    monkeypatch.setitem(sys.modules, "siglum.serve.server", None)
    assert call(Command, run, "serve", [str(tmp_path)]) == 1
    assert "pip install 'siglum[serve]'" in capsys.readouterr().err


def test_flags_are_settings(capsys: pytest.CaptureFixture[str]) -> None:
    from siglum.cli.main import main

    assert main(["serve", "--help"]) == 0
    told = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in told for name in SETTINGS)
    assert main(["serve", "nowhere", "--host", "0.0.0.0"]) == 1
    assert "anyone who reaches 0.0.0.0" in capsys.readouterr().err


def test_flags_go_before_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from siglum.cli.main import main

    monkeypatch.setenv("SIGLUM_SERVE_HOST", "0.0.0.0")
    assert main(["serve", "nowhere", "--read-only"]) == 1
    assert "nowhere is not a run folder" in capsys.readouterr().err
    monkeypatch.setenv("SIGLUM_SERVE_PROT", "1")
    assert main(["serve", "nowhere"]) == 1
    assert "there is no setting SIGLUM_SERVE_PROT" in capsys.readouterr().err
