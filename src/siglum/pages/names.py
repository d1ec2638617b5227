"""How pages name, order and colour systems, tasks and runs."""

from __future__ import annotations

from collections.abc import Iterable

from siglum.data.tasks import TASK_LABELS

NAMES = {
    "dense": "dense",
    "scan": "scan",
    "geometry": "geometry",
    "genius": "GENIUS",
    "pro": "PRO",
    "pro_without_pd": "PRO without PD",
}
RUN_COLOURS = ("pro", "genius", "geometry", "pro_without_pd", "spare0", "spare1", "scan", "spare2")
"""Names of the theme's colours, in the order in which runs take them."""
SPARE_COLOURS = 3
"""Colours kept for systems without one of their own."""


def in_order(keys: Iterable[str], usual: Iterable[str]) -> list[str]:
    """Return distinct keys: the usual ones in their order, then the others by name."""
    found, known = set(keys), list(usual)
    return [key for key in known if key in found] + sorted(found.difference(known))


def name_system(system: str) -> str:
    """Return the name a system goes by on the page; an unknown one keeps its own.

    >>> name_system("genius")
    'GENIUS'
    """
    return NAMES.get(system, system)


def name_task(task: str) -> str:
    """Return a task as the page writes it.

    >>> name_task("t2it")
    't→(i,t)'
    """
    return TASK_LABELS.get(task, task or "all")


def colour_system(system: str, among: Iterable[str]) -> str:
    """Return the colour of a system as CSS; unknown systems among those shown share the spare colours in turn."""
    if system in NAMES:
        return f"var(--{system})"
    return f"var(--spare{sorted(set(among).difference(NAMES)).index(system) % SPARE_COLOURS})"


def colour_run(place: int) -> str:
    """Return the colour of a run as CSS, by its place on the command line.

    >>> colour_run(0), colour_run(9)
    ('var(--pro)', 'var(--genius)')
    """
    return f"var(--{RUN_COLOURS[place % len(RUN_COLOURS)]})"
