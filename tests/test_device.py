"""A CPU that announces AMX and ends whoever uses it is found out by another process and told of in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from siglum import SiglumError, device


@pytest.fixture(autouse=True)
def amx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    (tmp_path / "cpuinfo").write_text("flags : avx512f amx_tile amx_bf16\n")
    monkeypatch.setattr(device, "_FACTS", str(tmp_path / "cpuinfo"))
    device.bears_half_products.cache_clear()
    yield
    device.bears_half_products.cache_clear()


def test_products_that_end_a_process_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_PRODUCT", "import os; os.abort()")
    assert not device.bears_half_products()
    device.check_half_products("fp32")
    with pytest.raises(SiglumError, match=r"bf16 would end this process.* ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16"):
        device.check_half_products("bf16")
    with pytest.raises(SiglumError, match="would end this process"):
        device.trains_in_bf16("decoder.precision", "bf16", "cpu")


def test_products_that_work_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_PRODUCT", "1 + 1")
    device.check_half_products("int8")


def test_no_process_is_started_where_no_amx_is_announced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("flags : avx512f\n")
    monkeypatch.setattr(device, "_PRODUCT", "import os; os.abort()")
    assert device.bears_half_products()
