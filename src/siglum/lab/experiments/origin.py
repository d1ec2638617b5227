"""Where a part's numbers come from: its data, the sources of training and search, and the kind of device.

Numbers of one table, and both sides of a contrast, must have the same origin. What else decides a number, its resolved
settings, is in a part's identity, by which a part of other settings does not count at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from siglum.lab.experiments.base import Part, Unit
from siglum.lab.experiments.machine import kind_of_device, processor
from siglum.lab.experiments.setting import Setting
from siglum.lab.sources import MEASURING, sources_fingerprint
from siglum.types import SiglumError

WORDS = {"device": "on {}", "processor": "on {}", "sources": "with sources {}", "data": "on data {}"}


def origin_of(setting: Setting, unit: Unit) -> dict[str, str]:
    """Return the origin of what is measured here and now; empty is what does not matter."""
    return {
        "device": "" if unit.anywhere else kind_of_device(setting.device),
        "processor": processor() if unit.alone else "",
        "sources": sources_fingerprint(*MEASURING),
        "data": setting.identity(),
    }


def one_origin(parts: Sequence[Part]) -> dict[str, str]:
    """Return the origin that all parts share, refusing parts of several.

    >>> one_origin([{"unit": "pro", "origin": {"device": "cpu"}}, {"unit": "faiss_rq", "origin": {"device": ""}}])
    {'device': 'cpu'}
    """
    found: dict[str, str] = {}
    names: dict[str, str] = {}
    for part in parts:
        for key, value in part.get("origin", {}).items():
            if not value:
                continue
            names.setdefault(key, _name(part))
            if found.setdefault(key, value) != value:
                where = WORDS[key].format
                raise SiglumError(
                    f"{_name(part)} is measured {where(value)} but {names[key]} {where(found[key])}: a table holds "
                    "numbers of one origin alone, so measure both in one place, or one of them in another --out."
                )
    return found


def _name(part: dict[str, Any]) -> str:
    return f"{part['unit']}-{part['seed']}" if "seed" in part else str(part["unit"])
