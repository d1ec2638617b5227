"""The model card of a retriever: what it is, what it was trained on, what it finds, its terms, how to load it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from siglum.config import SearchConfig
from siglum.data.source import read_source
from siglum.data.tasks import TASK_LABELS, TASKS
from siglum.files import read_record, write_text
from siglum.run.folder import CONFIG_FILE, RunFolder
from siglum.run.results import verify_result
from siglum.tokenize.train import Tokenizer
from siglum.types import SiglumError

CARD_FILE = "README.md"
EFFICIENTNETS = tuple(f"efficientnet-lite{size}{by}" for size in (0, 2) for by in ("", "-torch"))
TERMS = {
    "builtin": "Its encoder is part of Siglum (Apache-2.0).",
    "clip": "OpenAI's CLIP is MIT; its model card calls any deployed use out of scope.",
    "openclip": "open_clip's code is MIT; each pretrained weight has its own licence.",
    "uniir-clip-sf": "UniIR's weights are MIT, trained on M-BEIR.",
    "uniir-blip-ff": "UniIR's weights are MIT, trained on M-BEIR; BLIP, which they start from, is BSD-3-Clause.",
    "llm2clip": "LLM2CLIP's CLIP part is Apache-2.0; its text part is a Llama 3 model labelled MIT.",
    "siglip2": "SigLIP 2 is Apache-2.0.",
    "minilm": "all-MiniLM-L6-v2 is Apache-2.0.",
    **dict.fromkeys(EFFICIENTNETS, "EfficientNet-lite is Apache-2.0, trained on ImageNet."),
    "sentence": "Each sentence-transformers model has its own licence.",
}
"""Terms of encoders by kind, in short; docs/assets.md has the whole."""
ORDER = ("dense", "scan", "geometry")
"""Systems as they stand in a table, before the run's own."""
COLUMNS = ("success@1", "success@5", "success@10")


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a card tells."""

    rows: Sequence[tuple[str, str]]
    encoder: str
    """Empty for features made elsewhere."""
    trained_on: str
    terms: str
    asked_by: str
    encoder_is_local: bool = False
    texts: str = ""
    """How many items have texts; empty for none."""
    table: str = ""
    split: str = ""
    base_model: str = ""
    tags: Sequence[str] = field(default=("generative-retrieval", "multimodal-retrieval", "semantic-ids"))


def public_name(encoder: str) -> str:
    """Return an encoder's name without the folders of one machine.

    >>> public_name("clip:/models/my-clip"), public_name("clip:ViT-L/14")
    ('clip:my-clip', 'clip:ViT-L/14')
    """
    return re.sub(r"(?:(?<=:)|(?<=\+)|(?<=[^/:]/))(?:/|[A-Za-z]:\\)(?:[^+]*[/\\])?", "", encoder)


def facts_of(
    home: Path | None, tokenizer: Tokenizer, search: SearchConfig, encoder: str, counts: Mapping[str, int]
) -> CardFacts:
    """Return the facts of a retriever; the folder it was loaded from tells what it was trained on, if it is a run."""
    named = "" if encoder == "none" else public_name(encoder)
    sizes = " ".join(map(str, tokenizer.quantizer.sizes))
    settings = f"scorer {search.scorer}, beam {search.beam}, ω {search.omega:g}"
    rows = [("Items", f"{counts['items']:,}"), ("Encoder", f"`{named or 'none'}`")]
    rows += [("Codes of an item", f"{len(tokenizer.quantizer.sizes)}, from vocabularies of {sizes}")]
    rows += [("Parameters of the decoder", f"{counts['parameters']:,}")] if counts["parameters"] else []
    rows += [("Search", settings), *_settings(home)]
    kinds = [part.partition(":")[0] for part in re.split(r"\+(?=[a-z])", named)]
    terms = dict.fromkeys(TERMS.get(kind, f"The terms of the encoder `{kind}` are its own.") for kind in kinds if kind)
    fusion = tokenizer.fusion
    parts = [name for name, shift in (("text", fusion.text_shift), ("picture", fusion.image_shift)) if len(shift)]
    split, table = _results(home)
    return CardFacts(
        rows,
        named,
        _trained_on(home),
        " ".join(terms) or "Terms of the features it was trained on are not known here.",
        " and ".join(parts),
        encoder_is_local=named != encoder and bool(named),
        texts=f"{counts['texts']:,}" if counts["texts"] else "",
        table=table,
        split=split,
        base_model=_base_model(named),
    )


def write_card(folder: Path, name: str, facts: CardFacts) -> None:
    """Write the card into a folder."""
    from jinja2 import Environment, FileSystemLoader

    files = Environment(loader=FileSystemLoader(Path(__file__).parent), keep_trailing_newline=True)
    write_text(folder / CARD_FILE, files.get_template("card.md.j2").render(name=name, facts=facts))


def _base_model(encoder: str) -> str:
    """Return the hub's name of the encoder's model, where it has one."""
    found = re.fullmatch(r"(?:clip|sentence|siglip2):([\w.-]+/[\w.-]+)", encoder)
    return found[1] if found else ""


def _settings(home: Path | None) -> list[tuple[str, str]]:
    """Return the recipe of the run, if it is a run and no saved retriever."""
    try:
        record = {} if home is None else read_record(home / CONFIG_FILE)
    except SiglumError:
        return []
    return (
        [("Recipe", f"{record['recipe']}, scale {record['scale']}, seed {record['seed']}")]
        if "recipe" in record
        else []
    )


def _trained_on(home: Path | None) -> str:
    """Say what the run's items are, without the places where they lie."""
    source: dict[str, Any] = {} if home is None else read_source(home)
    kind, name = source.get("kind"), Path(source.get("path", "")).name
    if kind == "folder":
        learnt = source.get("learnt")
        captions = f" and {learnt:,} captions" if learnt else ""
        return f"Pictures of a folder, `{name}`{captions}."
    if kind == "items":
        return f"The items of a file, `{name}`, and queries with their right answers."
    if kind == "world":
        return f"Siglum's drawn world: {source['items']:,} items, seed {source['seed']}."
    return "Not recorded: say here what it was trained on."


def _results(home: Path | None) -> tuple[str, str]:
    """Return the split that the run was measured on, and its results as a table; nothing where it was not."""
    for split in ("test", "val"):
        path = None if home is None else RunFolder(home).report / f"eval-{split}.json"
        if path is not None and path.exists():
            verify_result(path)
            tasks: dict[str, dict[str, dict[str, float]]] = read_record(path, "tasks")["tasks"]
            found = {system for row in tasks.values() for system in row}
            systems = [*(name for name in ORDER if name in found), *sorted(found.difference(ORDER))]
            lines = [f"| | {' | '.join(systems)} |", f"| --- |{' --- |' * len(systems)}"]
            for task in [*(name for name in TASKS if name in tasks), *(name for name in tasks if name not in TASKS)]:
                cells = (" / ".join(_cell(tasks[task].get(system, {}), name) for name in COLUMNS) for system in systems)
                lines.append(f"| {TASK_LABELS.get(task, task) or 'all'} | {' | '.join(cells)} |")
            return split, "\n".join(lines)
    return "", ""


def _cell(row: Mapping[str, float], name: str) -> str:
    return f"{100 * row[name]:.1f}" if name in row else "–"
