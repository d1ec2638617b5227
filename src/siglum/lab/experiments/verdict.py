"""The verdict on distillation, made from the numbers: what was fixed beforehand, and the sentence that follows.

The primary endpoint is real-beam survival at B = 20 in each system's served search, all tasks (directions) pooled,
each counting alike, PD on less PD off. Only what PD has above both teachers that know no ranking may be called ranking
distillation, and an endpoint says something about PD only where held-out L_rank fell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from siglum.lab.experiments.checks import LOSS as LOSS
from siglum.lab.experiments.samples import MEAN, Samples, detectable, show_interval
from siglum.measure.significance import interval

PRIMARY = "beam@20"
OFF, ON = "off", "on"
BLIND = {"one_hot": "the one-hot teacher (c)", "shuffled": "the shuffled teacher (d)"}
"""Controls that PD must be above for its ranking to be what helps."""
OTHERS = {"extra": "the extra epochs of L_cl (a)", "slow_ema": "the slower EMA (b)"}
Interval = Mapping[str, float]


def judge(numbers: Samples) -> dict[str, Any]:
    """Return the primary endpoint with all it stands on, and the verdict."""
    above = {name: numbers.contrast({ON: 1.0, name: -1.0}, MEAN, PRIMARY) for name in (*BLIND, *OTHERS)}
    rounds_R = numbers.rounds({ON: 1.0, OFF: -1.0}, MEAN, PRIMARY)
    effect = None if rounds_R is None else interval(rounds_R)
    smallest = None if rounds_R is None else detectable(rounds_R)
    acted = numbers.contrast({ON: 1.0, OFF: -1.0}, MEAN, LOSS)
    primary = {
        "endpoint": "real-beam survival at B = 20, served scorer, last level, all positives, tasks pooled",
        "effect": effect,
        "smallest_detectable": smallest,
        "smallest_detectable_is": "2.8 standard errors of the bootstrap over items and seeds: power 80 % at 5 %",
        "above": above,
        "two_sample_t_p": numbers.t_test(ON, OFF, MEAN, PRIMARY),
        "by_task": {task: numbers.contrast({ON: 1.0, OFF: -1.0}, task, PRIMARY) for task in numbers.tasks},
    }
    return {"primary": primary, "acted": acted, "verdict": verdict(acted, effect, smallest, above)}


def verdict(
    acted: Interval | None, effect: Interval | None, smallest: float | None, above: Mapping[str, Interval | None]
) -> str:
    """Return what may be said of distillation: of L_rank's change, of the effect, and of what PD has above controls.

    >>> fell, none = {"mean": -0.1, "low": -0.2, "high": -0.1}, {"mean": 0.0, "low": -0.01, "high": 0.01}
    >>> verdict(fell, none, 0.012, {"one_hot": none, "shuffled": none}).split(":")[0]
    'No effect of distillation was found'
    """
    blind = {name: above.get(name) for name in BLIND}
    if acted is None or effect is None or smallest is None or None in blind.values():
        return "There is no verdict yet: PD off, PD on and both teachers that know no ranking must be measured."
    known = {name: one for name, one in blind.items() if one is not None}
    loss = f"held-out L_rank changes by {show_interval(acted, 1.0, 3)}"
    found = f"{show_interval(effect)} points of targets kept at B = 20"
    power = f"effects from {100 * smallest:.1f} points on would have been found (80 % power)"
    if acted["high"] >= 0:
        return f"Distillation was not seen to act ({loss}), so the endpoint, {found}, is no verdict on it."
    over = " and ".join(f"{show_interval(one)} above {BLIND[name]}" for name, one in known.items())
    is_ranking = all(one["low"] > 0 for one in known.values())
    if effect["low"] > 0:
        if is_ranking:
            return f"Ranking distillation helps: {found} over training without it ({loss}), {over}."
        return (
            f"Training with L_rank helps, but not by the ranking: {found} over training without it ({loss}), but "
            f"{over}; this may not be called ranking distillation."
        )
    if effect["high"] < 0:
        return f"Distillation acts and harms: {found} against training without it ({loss}); {over}."
    harm = " It is above both controls only because these do harm." if is_ranking else ""
    return f"No effect of distillation was found: {found}, though it acts ({loss}); {power}; {over}.{harm}"
