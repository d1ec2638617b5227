"""Devices: asked for by name, refused in one sentence where they are not there."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from siglum.types import SiglumError, one_of, shown

if TYPE_CHECKING:
    import torch

PRECISIONS = ("auto", "fp32", "bf16")
"""Arithmetic of training."""


def check_device(device: str) -> str:
    """Return the device's name if torch can use it, else refuse it; auto is cuda where there is one, else cpu.

    >>> check_device("cpu")
    'cpu'
    """
    import torch

    refusal = SiglumError(f"device is {shown(device)}, but must be one of: auto, cpu, cuda, cuda:N, mps.")
    if not isinstance(device, str):
        raise refusal
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        asked = torch.device(device)
    except RuntimeError as error:
        raise refusal from error
    kind = asked.type
    if kind not in ("cpu", "cuda", "mps"):
        raise refusal
    if kind == "cuda" and not torch.cuda.is_available():
        raise SiglumError(f"device {device} was asked for, but torch sees no CUDA device; use cpu.")
    if kind == "cuda" and (asked.index or 0) >= torch.cuda.device_count():
        raise SiglumError(f"device {device} was asked for, but torch sees {torch.cuda.device_count()} CUDA devices.")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise SiglumError(f"device {device} was asked for, but torch sees no MPS device; use cpu.")
    return device


CPU_CAP = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
"""The variable, and its value, that keep torch from instructions a machine has in name only."""
_FACTS = "/proc/cpuinfo"
_PRODUCT = "import torch; x = torch.ones(64, 64).bfloat16(); x @ x"


@cache
def bears_half_products() -> bool:
    """Return whether this machine's CPU can multiply in bf16 and int8.

    Some virtual machines announce AMX and do not bear it: the first such product ends the process, so another tries it.
    """
    facts = Path(_FACTS)
    if not facts.exists() or "amx_tile" not in facts.read_text():
        return True
    return subprocess.run([sys.executable, "-c", _PRODUCT], capture_output=True, check=False).returncode >= 0


def check_half_products(precision: str) -> None:
    """Refuse a precision below fp32 on a CPU where its products would end the process."""
    if precision != "fp32" and not bears_half_products():
        raise SiglumError(
            f"{precision} would end this process, since the machine announces AMX instructions it does not bear; set"
            f" {'='.join(CPU_CAP)} in the environment, or use fp32."
        )


def trains_in_bf16(name: str, precision: str, device: str | torch.device) -> bool:
    """Return whether a module learns in bf16 autocast: where its precision, an option of this name, says so.

    >>> trains_in_bf16("decoder.precision", "auto", "cpu"), trains_in_bf16("decoder.precision", "bf16", "cpu")
    (False, True)
    """
    one_of(name, precision, PRECISIONS)
    if precision == "bf16" and str(device).startswith("cpu"):
        check_half_products(precision)
    return precision == "bf16" or (precision == "auto" and str(device).startswith("cuda"))
