"""Runs as one HTML page that needs nothing beside itself: side by side where there are several, a portrait of one.

Equal input gives equal bytes. What a run does not have yet is left out, and the page says what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from siglum.measure.page import render_page, render_rows, render_table
from siglum.measure.run_examples import RunExample, render_examples
from siglum.measure.run_experiments import FinishedExperiment, render_experiments
from siglum.measure.run_losses import render_losses
from siglum.measure.run_parts import CSS, fold, paint, section, sentence, show_setting, swatch
from siglum.measure.run_report import Document, Portrait, differing, flatten
from siglum.measure.run_results import render_cards, render_results, tell_finding
from siglum.types import SiglumError


def render_run_report(
    document: Document, examples: Sequence[RunExample] = (), experiments: Sequence[FinishedExperiment] = ()
) -> str:
    """Return the page about the runs of a document, with example queries and experiments where there are some."""
    runs: Sequence[Portrait] = document["runs"]
    if not runs:
        raise SiglumError("there are no runs to report on; give at least one.")
    names = [run["name"] for run in runs]
    title = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    finding, lead = tell_finding(document)
    parts = [
        f'<header><h1>{escape(title)}</h1><p class="finding">{sentence(finding)}</p>'
        f'<p class="lead">{sentence(lead)}</p></header>',
        render_cards(document),
        _missing(runs),
        render_results(document),
        render_losses(document),
        render_examples(examples, names),
        _configuration(runs),
        render_experiments(experiments),
        _provenance(document),
    ]
    page = render_page(f"{title} · Siglum", "\n".join(part for part in parts if part))
    return page.replace("</style>", f"{CSS}</style>", 1)


def _missing(runs: Sequence[Portrait]) -> str:
    """Say what could not be measured, and why."""
    cards = []
    for place, run in enumerate(runs):
        if run["notes"]:
            notes = "".join(f"<p>{sentence(note)}</p>" for note in run["notes"])
            cards.append(f'<div class="card missing"><h3>{swatch(run["name"], paint(place))}</h3>{notes}</div>')
    return section("What is missing", f'<div class="grid systems">{"".join(cards)}</div>') if cards else ""


def _configuration(runs: Sequence[Portrait]) -> str:
    """Show the settings that differ, or those that are not the recipe's, and fold the whole away."""
    changed = differing([run["config"] for run in runs])
    if len(runs) == 1:
        own = runs[0]["changed"]
        rows = [(name, show_setting(was), show_setting(now)) for name, (was, now) in own.items()]
        said = "All settings are those of the recipe." if runs[0]["changed_known"] else ""
        shown = render_rows("Settings that are not the recipe’s", ("Setting", "Recipe", "Here"), rows) if rows else said
    else:
        said = "The runs have the same settings."
        shown = _settings("Settings that differ", runs, changed, ()) if changed else said
    if shown == said:
        shown = f"<p>{escape(said)}</p>" if said else ""
    flat = list(dict.fromkeys(name for run in runs for name in flatten(run["config"])))
    whole = _settings("All settings", runs, flat, changed)
    return f'<div class="settings">{section("Configuration", shown, fold("All settings", whole))}</div>'


def _settings(caption: str, runs: Sequence[Portrait], names: Sequence[str], marked: Sequence[str]) -> str:
    """Return settings by runs, with some rows marked."""
    flat = [flatten(run["config"]) for run in runs]
    heads = "".join(f'<th scope="col">{swatch(run["name"], paint(place))}</th>' for place, run in enumerate(runs))
    rows = []
    for name in names:
        cells = "".join(f"<td>{escape(show_setting(own.get(name)))}</td>" for own in flat)
        kind = ' class="changed"' if name in marked else ""
        # A dotted name may break at its joints, and nowhere else.
        words = re.sub(r"([._])", r"\1<wbr>", escape(name))
        rows.append(f'<tr{kind}><th scope="row">{words}</th>{cells}</tr>')
    return render_table(caption, f'<tr><th scope="col" class="corner">Setting</th>{heads}</tr>', "".join(rows))


def _provenance(document: Document) -> str:
    """Tell what the numbers were made from, with what, on what and when."""
    runs: Sequence[Portrait] = document["runs"]
    rows = []
    for run in runs:
        stages = ", ".join(name for name, state in run["stages"].items() if state == "finished") or "none"
        asked = sum(run["queries"].values())
        told = [run["folder"], run["recipe"], run["scale"], str(run["seed"]), f"{asked:,}", f"{run['items']:,}"]
        rows.append([run["name"], *told, stages, run["trained"] or "–"])
    heads = ("Run", "Folder", "Recipe", "Scale", "Seed", "Queries asked", "Items", "Finished stages", "Last trained")
    made = [(name, str(value)) for name, value in _made(document).items() if value]
    return section(
        "How this page was made",
        f'<p class="command">{escape(document["command"])}</p>',
        f'<div class="settings">{render_rows("The runs", heads, rows)}'
        f"{render_rows('This report', ('What', 'Value'), made)}</div>",
    )


def _made(document: Document) -> dict[str, str | None]:
    machine = document["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return {
        "Made": f"{document['made']}, in {document['seconds']:.0f} s",
        "Split": document["split"],
        "Commit": machine["commit"],
        "Versions": versions,
        "Processor": f"{machine['cpu']}, {machine['cores']} cores",
        "Accelerator": machine["gpu"],
        "System": machine["system"],
    }
