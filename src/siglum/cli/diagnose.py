"""`siglum diagnose`: where the beam loses its targets, before and after the decoder exists."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siglum.console.commands import DeviceVerb, OneRun, say
from siglum.types import SiglumError

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(kw_only=True)
class Command(OneRun, DeviceVerb):
    """Tell whether the tokenizer is good enough, and where the beam loses its targets.

    Needs the stages vectors and tokenizer. With a trained decoder it also tells what that loses and what fusion wins
    back. The ladder runs one beam over one trie with scores that come closer to the real search: teacher (exact
    similarities), oracle (quantised), geometry (distance), decoder, fused; what a rung loses beyond the one before it
    is its doing. Each task is asked against its own pool. Exits with 0 whatever it finds, unless --fail-under.

    Examples:
      siglum diagnose runs/mine
      siglum diagnose runs/mine --beam 20 --queries 5000
      siglum diagnose runs/mine --split val --fail-under 0.8 --json
      siglum diagnose runs/mine --out diagnosis.html
    """

    split: str = "test"
    """val or test."""
    beam: int | None = None
    """Beam width B; by default the run's own."""
    tau: float | None = None
    """Temperature of the distributions behind K, m and eps; by default the tokenizer's own."""
    queries: int = 1000
    """How many queries to ask in all, evenly spread over the tasks; 0 asks all."""
    fail_under: float | None = None
    """Exit with 1 if fewer targets than this share (0 to 1) reach the last level in the run's own search (the last
    rung there is: geometry before the decoder is trained)."""
    out: Path | None = None
    """Write a page (HTML) of all that is found to this file; folders above it that are missing are made."""


def run(command: Command) -> dict[str, Any]:
    """Diagnose and print tables and verdict."""
    if command.fail_under is not None and not 0 <= command.fail_under <= 1:
        raise SiglumError(f"--fail-under is a share from 0 to 1, not {command.fail_under}.")
    from siglum.api import diagnose

    found = diagnose(command.folder, **command.values("split", "beam", "tau", "queries", "device"))
    result: dict[str, Any] = {"run": str(command.folder), **found}
    if command.out is not None:
        _write_page(command.out, result)
    if not command.json:
        _show(result)
    own = next(rung for rung in result["ladder"] if rung["rung"] == result["own"])
    final = own["survival"][-1]
    if command.fail_under is not None and final < command.fail_under:
        if command.json:  # an error keeps the caller from printing it
            sys.stdout.write(json.dumps(result, indent=1, sort_keys=True) + "\n")
        raise SiglumError(
            f"{100 * final:.1f} % of targets reach the last level ({result['own']}), fewer than the"
            f" {100 * command.fail_under:g} % asked for with --fail-under."
        )
    return result


def _write_page(path: Path, result: dict[str, Any]) -> None:
    from siglum.files import write_text
    from siglum.pages.losses import render_diagnosis

    write_text(path, render_diagnosis(result, Path(result["run"]).resolve().name))
    say(f"page: {path}")


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False, width=100)
    health = result["health"]
    console.print(
        f"[bold]{result['run']}[/]  {result['split']}: {result['queries']:,} queries, {health['items']:,} items in"
        f" {result['pools']} pool{'s' if result['pools'] > 1 else ''}, beam {result['beam']}, τ {result['tau']:g}"
    )
    console.print(
        f"{health['distinct']:,} distinct codes, {100 * health['collision_rate']:.1f} % of items share theirs,"
        f" reconstruction error {health['reconstruction']:.4f}"
    )
    for title, table, legend in (
        ("Codes", _codes(result), _codes_legend(result)),
        ("Ladder", _ladder(result), _ladder_legend(result)),
        ("Lost", _lost(result), "Points lost beyond the rung to the left; a minus sign is won back. They add up."),
    ):
        console.print(f"\n[bold]{title}[/]")
        console.print(table)
        console.print(f"[dim]{legend}[/]")
    console.print("\n[bold]Verdict[/]")
    for text in (result["verdict"], *result["notes"]):
        console.print(text[0].upper() + text[1:])


def _table(*columns: str) -> Table:
    from siglum.console.tables import plain_table

    return plain_table(*columns, padding=(0, 2, 0, 0))


def _per_cent(share: float) -> str:
    return f"{100 * share:.1f}"


def _codes(result: dict[str, Any]) -> Table:
    has_eps, has_fusion = result["decoder"], result["omega"] is not None
    names = ["level", "V", "used", "dead", "bits", "error", "prefixes", "token", "B/V", "leaves", "K", "m"]
    table = _table(*names, *(["ε"] if has_eps else []), *(["ε fused"] if has_fusion else []))
    for level in result["levels"]:
        mark = "" if level["eps_scope"] in (None, "full") else "*"
        eps = [level[name] for name in ("eps", "eps_fused") if level[name] is not None]
        table.add_row(
            str(level["level"]),
            str(level["size"]),
            _per_cent(level["usage"]),
            str(level["dead"]),
            f"{level['entropy']:.1f}",
            f"{level['error']:.3f}",
            f"{level['prefixes']:,.0f}",
            f"[bold]{_per_cent(level['survival'])}[/]",
            _per_cent(level["chance"]),
            _per_cent(level["leaves"]),
            f"{level['K']:.2f}",
            f"{level['m']:.3f}",
            *(f"{value:.3f}{mark}" for value in eps),
        )
    return table


def _codes_legend(result: dict[str, Any]) -> str:
    text = (
        "In per cent: codewords used; token, whether the target's code is among the top B of the level's V by <q, c>,"
        " given its true prefix; B/V, what chance gives; leaves, the pool's items under the oracle's beam. bits:"
        " entropy of the codes. error: mean squared distance left. K: divergence of the oracle from the teacher;"
        " m: the teacher's margin."
    )
    if result["levels"][0]["level"] == 0:
        text += " Level 0 is the modality token."
    if result["decoder"]:
        text += " ε: distance of the decoder's distribution from the oracle's, at τ as the paper has it."
        scoped = [level for level in result["levels"] if level["eps_scope"] != "full"]
        if scoped:
            worst = max(level["uncovered"] for level in scoped)
            text += (
                f" *over {scoped[0]['eps_scope']}, which leaves out up to {_per_cent(worst)} % of the oracle's mass."
            )
    return text


def _ladder(result: dict[str, Any]) -> Table:
    rungs = result["ladder"]
    table = _table("level", "prefixes", "chance", *(rung["rung"] for rung in rungs))
    rows: list[tuple[list[int], list[str]]] = []
    for place, level in enumerate(result["levels"]):
        cells = [f"[bold]{_per_cent(r['survival'][place])}[/] [dim]({_per_cent(r['leaves'][place])})[/]" for r in rungs]
        cells = [f"{level['prefixes']:,.0f}", _per_cent(level["prefix_chance"]), *cells]
        if rows and rows[-1][1] == cells:  # deep levels often change nothing
            rows[-1][0].append(level["level"])
        else:
            rows.append(([level["level"]], cells))
    for numbers, cells in rows:
        table.add_row(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}", *cells)
    return table


def _ladder_legend(result: dict[str, Any]) -> str:
    text = (
        "Per cent of targets whose prefix is still in the beam, and in brackets the pool's items under it; chance is"
        f" B over the number of prefixes. ±{_per_cent(result['margin'])} points at most (95 %)."
    )
    return text + (" Decoder and fused are asked with the query head's vectors." if result["query_head"] else "")


def _lost(result: dict[str, Any]) -> Table:
    rungs = result["ladder"]
    table = _table("level", *(rung["rung"] for rung in rungs))
    worst = max(max(rung["share"]) for rung in rungs)

    def cell(share: float) -> str:
        if abs(share) < 0.0005:
            return "[dim]·[/]"
        style = "bold red" if share == worst else "green" if share < 0 else "default"
        return f"[{style}]{100 * share:.1f}[/]".replace("-", "−")

    for place, level in enumerate(result["levels"]):
        if any(abs(rung["share"][place]) >= 0.0005 for rung in rungs):
            table.add_row(str(level["level"]), *(cell(rung["share"][place]) for rung in rungs))
    table.add_row("all", *(cell(sum(rung["share"])) for rung in rungs), style="bold")
    return table
