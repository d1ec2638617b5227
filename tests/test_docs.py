"""The documentation keeps its word: names exist, links lead somewhere, settings and byte layouts are as written."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import fields, is_dataclass
from functools import reduce
from importlib import import_module
from inspect import ismodule, signature
from itertools import groupby
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

from siglum.cli.main import GROUPS, VERBS, module_of
from siglum.config import RunConfig, SearchConfig, diff
from siglum.data.source import SOURCES
from siglum.data.tasks import TASK_LABELS
from siglum.index import Index
from siglum.measure.ladder import CAUSES
from siglum.recipes import RECIPES, SCALES, recipe
from siglum.registry import ENCODERS, QUANTISERS, SCORERS

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PAPER = (ROOT / "docs" / "paper.md").read_text()
NAME = re.compile(r"`(siglum[\w.]*:[\w.]+)`")
HIDDEN = ("runs", "build", "dist", "tests")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", page.read_text(), re.S)


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", prose, re.M)}


@pytest.mark.parametrize("name", sorted(set(NAME.findall(PAPER))))
def test_every_name_of_the_paper_page_exists(name: str) -> None:
    module, _, path = name.partition(":")
    found: object = import_module(module)
    for part in path.split("."):
        if is_dataclass(found) and part in {f.name for f in fields(found)}:
            return
        assert hasattr(found, part), f"{name}: {found} has no {part}"
        found = getattr(found, part)


CALLABLE = re.compile(r"(?<![\w./-])siglum(?:\.[A-Za-z_]\w*)+")
FILE = re.compile(r"(?<![\w./-])((?:src/siglum|tests|examples|docs|benchmarks(?!/results/))/[\w./-]*\w)")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_module_and_file_named_exists(page: Path) -> None:
    text = page.read_text()
    lacking = [name for name in set(CALLABLE.findall(text)) if not leads_somewhere(name)]
    lacking += [name for name in set(FILE.findall(text)) if not (ROOT / name).exists()]
    assert lacking == []


def leads_somewhere(name: str) -> bool:
    """Tell whether a dotted name is a module, what a module has, or a group of entry points."""
    if name in (f"siglum.{registry.kind}s" for registry in (ENCODERS, QUANTISERS, SCORERS, SOURCES)):
        return True
    found: object = import_module("siglum")
    for end, part in enumerate(name.split(".")[1:], 2):
        if not hasattr(found, part):
            if not ismodule(found):
                return False
            try:
                import_module(".".join(name.split(".")[:end]))
            except ModuleNotFoundError:
                return False
        found = getattr(found, part)
    return True


GLOSSARY = [cells(line) for line in (ROOT / "docs" / "concepts.md").read_text().split("## Glossary")[1].splitlines()]
TERMS = {row[0]: row for row in GLOSSARY if len(row) == 4 and row[0] not in ("Term", "---")}


@pytest.mark.parametrize("term", TERMS)
def test_the_classes_and_settings_of_the_glossary_exist(term: str) -> None:
    shown = re.findall(r"`(.+?)`", TERMS[term][3])
    assert shown
    for name in shown:
        stage, _, field = name.partition(".")
        if ":" in name:
            test_every_name_of_the_paper_page_exists(name)
        elif stage == "siglum":
            assert leads_somewhere(name), name
        else:
            assert field in {f.name for f in fields(getattr(RunConfig(), stage))}, name


def test_the_glossary_has_the_words_of_commands_and_results() -> None:
    told = " ".join(f"{row[0]} {row[1]}" for row in TERMS.values())
    words = {
        *SCORERS.names(),
        *get_args(get_type_hints(SearchConfig)["mode"]),
        *CAUSES,
        "dense",
        "scan",
        "residual",
        "product",
    }
    assert [word for word in sorted(words) if not re.search(rf"\b{re.escape(word)}\b", told)] == []


def test_the_paper_page_names_code_at_all() -> None:
    assert len(set(NAME.findall(PAPER))) > 60


@pytest.mark.parametrize(("kind", "last"), [("Eq.", 25), ("Theorem", 2), ("Table", 15), ("Figure", 6)])
def test_the_paper_page_lists_every_part_of_the_paper(kind: str, last: int) -> None:
    covered: set[int] = set()
    for line in PAPER.splitlines():
        if match := re.match(rf"\| {re.escape(kind)} ([^|]*)", line):
            for start, end in re.findall(r"\b(\d+)(?:–(\d+))?[a-c]?\b", match[1].split(" of ")[0]):
                covered |= set(range(int(start), int(end or start) + 1))
    assert covered == set(range(1, last + 1))


def test_the_paper_page_lists_every_statement_of_the_appendix() -> None:
    assert {int(n) for n in re.findall(r"A\.(\d+)", PAPER)} == set(range(1, 12))


def test_where_a_part_is_missing_no_code_is_named_as_its_home() -> None:
    rows = [cells(line) for line in PAPER.splitlines() if re.match(r"\| (Eq|Theorem|Lemma|Table|Figure)", line)]
    assert len(rows) > 40
    for row in rows:
        assert row[1] in ("", "as Table 2", "**not yet**") or NAME.search(row[1]), row


def test_the_released_recipe_departs_as_the_paper_page_says() -> None:
    section = PAPER.split("## Where the released code departs")[1]
    table = [cells(line) for line in section.splitlines() if re.match(r"\| `(tokenizer|decoder|search)\.", line)]
    said = {row[0].strip("`"): tuple(cell.strip("`") for cell in row[1:3]) for row in table}
    found = diff(recipe("pro"), recipe("pro_released"))
    del found["recipe"]
    assert said == {
        name: tuple(str(v).lower() if isinstance(v, bool) else str(v) for v in pair) for name, pair in found.items()
    }


def test_the_paper_recipe_is_the_papers_table_of_hyper_parameters() -> None:
    config = recipe("pro", "paper")
    tokenizer, decoder, search = config.tokenizer, config.decoder, config.search
    assert tokenizer.levels == 16
    assert tokenizer.vocab == (512,) * 4 + (1024,) * 8 + (2048,) * 4
    assert (tokenizer.lr, tokenizer.epochs, tokenizer.batch_size) == (1e-4, 20, 2048)
    assert (tokenizer.rq_weight, tokenizer.mse_weight, tokenizer.rank_weight) == (100.0, 100.0, 100.0)
    assert (tokenizer.temperature, tokenizer.top_k, tokenizer.warmup) == (0.05, 128, 0.1)
    assert (decoder.lr, decoder.epochs, decoder.batch_size) == (1e-4, 30, 512)
    assert (decoder.d_model, decoder.encoder_layers, decoder.decoder_layers, decoder.soft_tokens) == (512, 6, 6, 1)
    assert decoder.soft_targets == 0.0
    assert search.beam == 50
    assert search.omega == 10.0 == pytest.approx(1 / (2 * tokenizer.temperature))
    assert recipe("genius", "paper").tokenizer.vocab == (4096,) * 16


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_relative_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        goal = page.parent / path if path else page
        if not goal.exists() or (anchor and goal.suffix == ".md" and anchor not in anchors(goal)):
            dead.append(target)
    assert dead == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=named)
def test_the_site_has_every_page_and_what_it_links(page: Path) -> None:
    """A site is made of docs/ alone, of the pages that its contents list."""
    place = page.relative_to(ROOT / "docs").as_posix()
    assert re.search(rf": {re.escape(place)}$", (ROOT / "mkdocs.yml").read_text(), re.M)
    targets = re.findall(r"\]\(([^)\s:#]+)[^)]*\)", page.read_text())
    assert [one for one in targets if not (page.parent / one).resolve().is_relative_to(ROOT / "docs")] == []


def test_figures_shown_are_those_of_the_results() -> None:
    shown = ROOT / "docs" / "img" / "catalogue-gaps.png"
    assert shown.read_bytes() == (ROOT / "benchmarks/results/fashion/catalogue/gaps.png").read_bytes()


def test_no_file_speaks_of_one_machine() -> None:
    looked_at, found = 0, []
    for path in ROOT.rglob("*"):
        place = path.relative_to(ROOT).parts
        if any(part.startswith(".") or part == "__pycache__" for part in place) or place[0] in HIDDEN:
            continue
        if path.is_file() and path.suffix in (".md", ".py", ".toml", ".txt", ".cff", ".json", ".html", ""):
            looked_at += 1
            text = path.read_text()
            words = ("/work/", "/tmp/", "/home/", "/root/", "/Users/")
            found += [f"{named(path)} contains {word}" for word in words if word in text]
    assert looked_at > 50 and found == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_have_the_verbs_and_options_shown(page: Path, subtests: pytest.Subtests) -> None:
    shown = [line for block in blocks(page, "sh") for line in block.splitlines()]
    shown += re.findall(r"`(siglum [a-z]+ [^`]+)`", page.read_text())
    for line in shown:
        if not line.startswith("siglum "):
            continue
        with subtests.test(line):
            verb, what = line.split()[1:3]
            assert verb in VERBS
            module = module_of(f"{verb} {what}" if verb in GROUPS else verb)
            options = {f.name for f in fields(import_module(module).Command)} | {"help"}
            asked = {option.replace("-", "_") for option in re.findall(r"(?<=\s)--([a-z-]+)", line)}
            assert asked <= options


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_settings_shown_exist(page: Path) -> None:
    text = page.read_text()
    shown = re.findall(r"--set\s+([a-z]\w*\.\w+)=", text) + re.findall(
        r"`((?:fusion|tokenizer|decoder|search)\.\w+)(?==|`)", text
    )
    unknown = []
    for name in shown:
        stage, _, field = name.partition(".")
        if field != "safetensors" and field not in {f.name for f in fields(getattr(RunConfig(), stage))}:  # a file
            unknown.append(name)
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_calls_shown_have_the_arguments_they_need(page: Path) -> None:
    """Of functions and classes that a block imports from siglum, or that siglum itself has."""
    wrong = []
    for block in blocks(page, "python"):
        tree = ast.parse(block)
        known = {"siglum": import_module("siglum")}
        for line in ast.walk(tree):
            if isinstance(line, ast.ImportFrom) and (line.module or "").split(".")[0] == "siglum":
                known |= {one.asname or one.name: getattr(import_module(line.module), one.name) for one in line.names}
        for call in (one for one in ast.walk(tree) if isinstance(one, ast.Call)):
            first, *parts = ast.unparse(call.func).split(".")
            if first not in known or "(" in first + "".join(parts):
                continue  # of an object that the block makes
            given = {one.arg or "": one.value for one in call.keywords}
            try:
                signature(reduce(getattr, parts, known[first])).bind(*call.args, **given)
            except TypeError as error:
                wrong.append(f"{ast.unparse(call)}: {error}")
    assert wrong == []


def test_the_readme_says_which_verbs_resume() -> None:
    commands = [
        name
        for verb in VERBS
        for name in ([f"{verb} {what}" for what in GROUPS[verb][1]] if verb in GROUPS else [verb])
    ]
    options = {name: {f.name for f in fields(import_module(module_of(name)).Command)} for name in commands}
    text = (ROOT / "README.md").read_text()
    said = re.search(r"After a kill, (.*?) go on where they stopped \(`--resume`", text, re.S)
    assert said and re.findall(r"`(.+?)`", said[1]) == [name for name in commands if "resume" in options[name]]
    assert [name for name in commands if "json" not in options[name]] == []


def test_the_changelog_promises_no_more_than_the_paper_page() -> None:
    missing = [cells(line)[0] for line in PAPER.splitlines() if line.startswith("| Table") and "**not yet**" in line]
    assert missing and "every table" not in (ROOT / "CHANGELOG.md").read_text()


def test_the_tables_of_recipes_and_scales_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "own-data.md").read_text()
    for name in RECIPES:
        assert f"`{name}`" in page
    rows = {row[0].strip("`"): row[1:5] for row in map(cells, page.splitlines()) if row[0].strip("`") in SCALES}
    assert set(rows) == set(SCALES)
    for scale, row in rows.items():
        config = recipe("pro", scale)
        decoder, search = config.decoder, config.search
        vocab = ", ".join(f"{len(list(group))} × {size}" for size, group in groupby(config.tokenizer.vocab))
        layers = f"{decoder.d_model}, {decoder.encoder_layers} + {decoder.decoder_layers}"
        assert row == [str(config.fusion.dim), vocab, layers, f"{search.beam}, {search.omega:g}"]


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Read a file by docs/formats.md alone."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    kinds = {"U8": "<u1", "U32": "<u4", "I64": "<i8", "U64": "<u8"}
    arrays = {}
    for name, entry in json.loads(raw[8 : 8 + length]).items():
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        arrays[name] = np.frombuffer(raw[start:end], kinds[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def test_the_index_can_be_read_by_its_description(tmp_path: Path) -> None:
    sizes, rng = (3, 512, 1, 2048, 5), np.random.default_rng(0)
    codes = np.stack([rng.integers(0, min(size, 4), 200) for size in sizes], 1)
    names = [f"item {row} ü" for row in range(200)]
    Index.build(names, codes, sizes, tokenizer="f00d").save(tmp_path)
    rows, ids = read_safetensors(tmp_path / "index.safetensors"), read_safetensors(tmp_path / "ids.safetensors")
    assert json.loads((tmp_path / "stage.json").read_text())["sizes"] == list(sizes)

    bits, length_bits = [(size - 1).bit_length() for size in sizes], len(sizes).bit_length()
    assert rows["packed"].shape == (200, -(-(sum(bits) + length_bits) // 8))
    before: list[int] = []
    for row, packed in enumerate(rows["packed"]):
        digits = "".join(f"{byte:08b}" for byte in packed)
        found = [int(digits[sum(bits[:t]) : sum(bits[: t + 1])] or "0", 2) for t in range(len(bits))]
        position = int.from_bytes(rows["order"][row].tobytes(), "little")
        assert found == codes[position].tolist()
        offsets = ids["id_offsets"]
        assert ids["id_bytes"][offsets[position] : offsets[position + 1]].tobytes().decode() == names[position]
        same = next((t for t, (a, b) in enumerate(zip(before, found, strict=False)) if a != b), len(before))
        assert int(digits[-length_bits:], 2) == same
        assert before <= found
        before = found
    assert ids["id_lookup"].tolist() == sorted(
        (described_hash(name) % 2**32) << 32 | row for row, name in enumerate(names)
    )


def described_hash(name: str) -> int:
    raw = name.encode()
    value = len(raw)
    for start in range(0, len(raw), 8):
        mixed = (value ^ int.from_bytes(raw[start : start + 8], "little")) * 0x9E3779B97F4A7C15 % 2**64
        value = mixed ^ (mixed >> 32)
    return value


def test_the_packing_shown_is_the_packing_done(tmp_path: Path) -> None:
    Index.build(["a"], np.array([[2, 511, 7]]), (3, 512, 2048), tokenizer="f00d").save(tmp_path)
    packed = read_safetensors(tmp_path / "index.safetensors")["packed"].tobytes().hex(" ")
    assert f"->   {packed}\n" in (ROOT / "docs" / "formats.md").read_text()


def test_the_readme_s_figures_are_the_demo_s() -> None:
    report = json.loads((ROOT / "benchmarks" / "results" / "demo" / "report.json").read_text())
    text = (ROOT / "README.md").read_text()
    labels = {label: task for task, label in TASK_LABELS.items()}
    rows = [cells(line) for line in text.splitlines() if line.startswith("| ") and cells(line)[0] in labels]
    assert len(rows) == len(report["tasks"]) == 8
    for label, *shown in rows:
        for system, cell in zip(("dense", "scan", "geometry", "genius", "pro"), shown, strict=True):
            wanted = [f"{100 * report['tasks'][labels[label]][system][f'success@{k}']:.1f}" for k in (1, 5, 10)]
            assert cell.replace("*", "").split(" / ") == wanted
    gap = report["gap"]
    assert f"on {gap['tasks_won']} of {gap['tasks']} tasks and closes {100 * gap['closed']:.0f} %" in text
    for system in ("genius", "pro", "pro_without_pd"):
        assert " ".join(f"{100 * share:.0f}" for share in report["survival"][system][:4]) in text
