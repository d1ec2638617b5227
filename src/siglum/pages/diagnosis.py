"""The page of one diagnosis: where the beam loses its targets, with all that `siglum diagnose` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from siglum.pages.document import own_rung
from siglum.pages.losses import DiagnosedRun, Losses
from siglum.pages.measurement import token_survival_of
from siglum.pages.render import render


def render_diagnosis(diagnosis: Mapping[str, Any], name: str) -> str:
    """Return the page of what `siglum.measure.diagnose` found in a run of this name."""
    run = DiagnosedRun(0, name, diagnosis, token_survival_of(diagnosis))
    return render("diagnose.html.j2", name=name, told=diagnosis, rung=own_rung(diagnosis), losses=Losses([run]))
