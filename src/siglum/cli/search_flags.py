"""How a search is to be done, as verbs take it on the command line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from siglum.types import SiglumError, shown


@dataclass(kw_only=True)
class SearchFlags:
    """Settings of one search that take the place of the run's own."""

    beam: int | None = None
    """Another beam width than the run's."""
    omega: float | None = None
    """Another fusion weight than the run's."""
    scorer: str | None = None
    """fused, decoder, geometry or oracle."""
    within: Path | None = None
    """Search only the ids in this text file, one a line."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Any other setting of the search, such as --set search.prior=0.5; may be repeated."""

    def options(self) -> dict[str, Any]:
        """Return the settings that were given, as `Retriever.search` takes them."""
        found: dict[str, Any] = {}
        for setting in self.set:
            stage, _, rest = setting.partition(".")
            name, equals, text = rest.partition("=")
            if stage != "search" or not equals:
                raise SiglumError(f"a setting of a search is written search.FIELD=VALUE, not {shown(setting)}.")
            try:
                found[name] = json.loads(text)
            except json.JSONDecodeError:
                found[name] = text
        given = {name: getattr(self, name) for name in ("beam", "omega", "scorer")}
        return found | {name: value for name, value in given.items() if value is not None}

    def ids(self) -> list[str] | None:
        """Return the ids that are searched; None means all."""
        return None if self.within is None else read_ids(self.within)


def read_ids(path: Path) -> list[str]:
    """Read ids, one a line."""
    from siglum.given import read_text

    return read_text(path).split()
