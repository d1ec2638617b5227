"""What a measurement was made on and with: hardware, versions and the commit of the code."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("siglum", "torch", "numpy", "transformers", "faiss-cpu", "ctranslate2")


def describe_machine(device: str) -> dict[str, Any]:
    """Return processor, cores, accelerator, versions and commit, as JSON values."""
    import torch

    return {
        "device": device,
        "gpu": torch.cuda.get_device_name() if device.startswith("cuda") else None,
        "cpu": processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "versions": {"python": platform.python_version(), **_versions()},
        "commit": commit(),
    }


def kind_of_device(device: str) -> str:
    """Return what the bits of a number depend on: an accelerator's model, or that there is none."""
    import torch

    return torch.cuda.get_device_name() if device.startswith("cuda") else device


def commit(folder: Path | None = None) -> str | None:
    """Return the commit of the checkout the code (or `folder`) lies in, marked where files differ; None outside one."""
    place = folder or Path(__file__).parents[2]
    try:
        head = _git(place, "rev-parse", "HEAD")
        changed = _git(place, "status", "--porcelain", "--untracked-files=no", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}{' with changes' if changed else ''}"


def _git(place: Path, *arguments: str) -> str:
    found = subprocess.run(["git", "-C", str(place), *arguments], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue  # an extra that is not installed, or the code run from its checkout
    return found


def processor() -> str:
    """Return the processor's name."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
