"""Explanations: what is told is what the beam did, the parts add up, and the page shows it without the network."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import slow_search as reference
from markup import all_said, parse, said
from siglum.config import SearchConfig
from siglum.index import Index
from siglum.measure.explain import Explanation, Level, explain, fold_tail, follow, name_group, record_of, tell
from siglum.pages.tree import WIDTH, render_explanation
from siglum.search.beam import beam_search
from siglum.search.lookahead import build_lookahead
from siglum.search.retriever import Retriever
from siglum.search.scorers import OracleScorer, build_scorer
from siglum.types import Hit, Item, Query, SiglumError

SEEDS, BEAMS = st.integers(0, 10_000), st.integers(1, 8)
CONFIGS = {
    "fused": SearchConfig(omega=4.0),
    "zscore": SearchConfig(omega=0.5, zscore=True),
    "children": SearchConfig(omega=4.0, normalisation="children"),
    "prior": SearchConfig(omega=4.0, prior=0.5),
    "decoder": SearchConfig(scorer="decoder"),
    "geometry": SearchConfig(scorer="geometry"),
    "oracle": SearchConfig(scorer="oracle"),
    "ahead": SearchConfig(omega=4.0, lookahead=True),
    "geometry ahead": SearchConfig(scorer="geometry", lookahead=True),
}
NAMES = {
    "prior": ["log_probability", "prior", "geometry"],
    "decoder": ["log_probability"],
    "geometry": ["geometry"],
    "oracle": ["oracle"],
    "geometry ahead": ["geometry"],
}


def parts_of_search(system, kind: str):
    system.decoder.config = replace(system.decoder.config, null_queries=0.1)
    config = CONFIGS[kind]
    return build_scorer(config, system.codebooks, system.decoder), build_lookahead(config, system.codebooks)


def followed(system, kind: str, target: int, beam: int, **options) -> list[Level]:
    scorer, ahead = parts_of_search(system, kind)
    row = int(system.index.rows([f"x{target}"])[0])
    return follow(scorer, system.index, system.query[:1], row, beam=beam, ahead=ahead, **options)


def explained(levels: list[Level], target: str = "x0", beam: int = 3) -> Explanation:
    end = levels[-1]
    alive = all(level.target.kept for level in levels)
    hits = tuple(Hit(p.examples[0], p.score, p.codes, p.rank) for p in end.best)
    return Explanation(target, end.target.codes, beam, tuple(levels), end.target.rank if alive else None, 9, hits)


@pytest.mark.parametrize("kind", CONFIGS)
@settings(max_examples=8)
@given(seed=SEEDS, beam=BEAMS, target=st.integers(0, 39))
def test_parts_add_up_to_the_beams_own_scores(make_system, kind: str, seed: int, beam: int, target: int) -> None:
    system, trace = make_system(seed, items=40), []
    scorer, ahead = parts_of_search(system, kind)
    beam_search(scorer, system.index, system.query[:1], beam, None, trace, ahead)
    levels = followed(system, kind, target, beam, best=beam)
    assert len(levels) == len(trace) == system.index.levels
    for depth, (level, live) in enumerate(zip(levels, trace, strict=True), start=1):
        owned = dict(zip(map(tuple, system.index.codes(live.lo)[:, :depth].tolist()), live.score, strict=True))
        assert {prefix.codes for prefix in level.best} == set(owned)
        assert level.kept == len(owned) and level.last == level.best[-1]
        for prefix in level.best:
            assert prefix.kept
            assert prefix.score == pytest.approx(owned[prefix.codes], abs=1e-5)
            assert sum(prefix.parts.values()) == pytest.approx(owned[prefix.codes], abs=1e-5)
        assert sum(level.target.parts.values()) == pytest.approx(level.target.score, abs=1e-5)
        assert list(level.target.parts) == NAMES.get(kind, ["log_probability", "geometry"])
        assert level.target.kept == (level.target.codes in owned)
        assert level.gap == pytest.approx(sum(level.gap_parts.values()), abs=1e-5)


@settings(max_examples=20)
@given(seed=SEEDS, beam=st.integers(1, 4), target=st.integers(0, 23))
def test_the_level_of_the_fall_and_the_ranks_are_those_of_exhaustive_search(
    make_system, seed: int, beam: int, target: int
) -> None:
    system = make_system(seed)
    codes, own = [tuple(row) for row in system.codes.tolist()], tuple(system.codes[target].tolist())
    score = reference.fused_score(system.query[0], system.decoder, system.codebooks, 4.0)
    levels = followed(system, "fused", target, beam)
    assume(all(abs(level.gap) > 1e-3 or level.target.codes == level.last.codes for level in levels))
    alive, live = True, [()]
    for depth, level in enumerate(levels, start=1):
        legal = sorted({code[:depth] for code in codes if code[: depth - 1] in live})
        scores = {prefix: score(prefix, []) for prefix in legal}
        alive = alive and own[:depth] in scores
        mine = score(own[:depth], [])
        live = [leaf for leaf, _ in reference.reference_search([code[:depth] for code in codes], score, beam)]
        alive = alive and own[:depth] in live
        assert (level.target.codes, level.target.kept) == (own[:depth], alive)
        assert level.target.score == pytest.approx(mine, abs=1e-4)
        assert level.target.rank == 1 + sum(other > mine for p, other in scores.items() if p != own[:depth])
        assert [prefix.codes for prefix in level.best] == live[:5]
        assert level.candidates == len(legal)
        assert level.prefixes == len({code[:depth] for code in codes})


def test_both_fates_occur_in_the_cases_above(make_system) -> None:
    ends = [all(level.target.kept for level in followed(make_system(0), "fused", item, 2)) for item in range(24)]
    assert True in ends and False in ends


@given(seed=SEEDS, beam=BEAMS)
def test_a_filter_equals_an_index_of_only_those_items(make_system, seed: int, beam: int) -> None:
    system = make_system(seed, items=30)
    mask = np.random.default_rng(seed).random(30) < 0.4
    mask[7] = True
    kept = np.flatnonzero(mask)
    small = Index.build([f"x{i}" for i in kept], system.codes[kept], system.index.sizes, "tok")
    scorer, allowed = OracleScorer(system.codebooks), system.index.allow(mask)
    row, alone = (int(index.rows(["x7"])[0]) for index in (system.index, small))
    found = follow(scorer, system.index, system.query[:1], row, beam=beam, allowed=allowed)
    wanted = follow(scorer, small, system.query[:1], alone, beam=beam)
    assert found == wanted


def test_a_prefix_tells_its_parent_and_items_under_it(make_system) -> None:
    system = make_system(1, items=40)
    levels = followed(system, "geometry", 3, 4, best=4)
    for before, level in zip(levels, levels[1:], strict=False):
        ranks = {prefix.codes: prefix.rank for prefix in (*before.best, before.target)}
        for prefix in (*level.best, level.target):
            assert prefix.parent == ranks[prefix.codes[:-1]]
            under = [i for i, row in enumerate(system.codes) if tuple(row[: len(prefix.codes)]) == prefix.codes]
            assert prefix.items == len(under)
            assert len(prefix.examples) == min(3, len(under))
            assert {int(name[1:]) for name in prefix.examples} <= set(under)
    assert all(level.target.examples[0] == "x3" for level in levels)
    assert {prefix.parent for prefix in levels[0].best} == {0}
    assert [level.level for level in followed(system, "geometry", 3, 4, first_residual=1)] == [0, 1, 2, 3]


def test_the_sentences_say_where_and_why(make_system) -> None:
    system = make_system(0, items=80)
    fates = [explained(followed(system, "fused", item, 3), f"x{item}") for item in range(80)]
    fallen = [one for one in fates if one.fall is not None]
    early = next(one for one in fallen if one.fall is not one.levels[-1])
    first, second, third = tell(early)
    assert first.startswith(f"{early.target} falls at {early.fall.name}: its prefix ranks {early.fall.target.rank} of")
    assert re.search(r"^It is \d+\.\d\d below the last one kept: log-probability .* (lower|higher), geometry", second)
    assert third.startswith(f"Had it stayed, its leaf would rank {early.levels[-1].target.rank}: ")
    assert ("pruning lost it" in third) == (early.levels[-1].target.rank <= 3)
    late = next(one for one in fallen if one.fall is one.levels[-1])
    assert len(tell(late)) == 2
    lucky = next(one for one in fates if one.fall is None and one.rank and one.rank > 1)
    said = tell(lucky)
    assert said[0] == f"{lucky.target} survives every level and is found at rank {lucky.rank} of 9."
    assert "closest call" in said[1] and f"{lucky.hits[0].item_id}, the first, is" in said[2]
    assert "nothing was pruned" in tell(explained(followed(system, "fused", 0, 99)))[1]
    best = next(one for one in fates if all(level.target.rank == 1 for level in one.levels))
    assert tell(best)[1:] == ["Its prefix ranks first wherever the beam prunes."]


def test_a_lost_tie_is_called_one() -> None:
    index = Index.build(["a", "b"], np.array([[0, 0], [1, 0]]), (2, 1), "tok")
    scorer = OracleScorer([torch.zeros(2, 3), torch.zeros(1, 3)])
    levels = follow(scorer, index, torch.ones(1, 3), 1, beam=1, first_residual=1)
    first, second, third = tell(explained(levels, "b", beam=1))
    assert first == "b falls at the modality token: its prefix ranks 2 of 2, and the beam keeps 1."
    assert second == "It ties with the last one kept, and of equal scores the smaller code stays."
    assert "would rank 2: beyond the beam of 1" in third


def test_the_record_is_json(make_system) -> None:
    one = explained(followed(make_system(0), "fused", 5, 1))
    record = json.loads(json.dumps(record_of(one)))
    assert record["fell_at"] == (one.fall.level if one.fall else None)
    assert record["verdict"] == tell(one)
    for own, level in zip(record["levels"], one.levels, strict=True):
        assert own["beaten_by"] == level.target.rank - 1
        assert own["gap"] == pytest.approx(sum(own["gap_parts"].values()), abs=1e-5)
        assert own["target"]["codes"] == list(level.target.codes)


def test_no_prefixes_to_tell_are_refused(make_system) -> None:
    with pytest.raises(SiglumError, match="best must be at least 1"):
        followed(make_system(0), "fused", 0, 3, best=0)


def test_a_run_is_explained_as_it_searches(world_run) -> None:
    retriever = Retriever.load(world_run)
    query = torch.randn(1, retriever.tokenizer.quantizer.dim, generator=torch.Generator().manual_seed(0))
    query = torch.nn.functional.normalize(query, dim=1)
    ids = list(retriever.index.ids)
    ranking = retriever.rank(query, k=len(ids), beam=6)[0]
    for place, position in enumerate(ranking.position[:4], start=1):
        one = explain(retriever, query, ids[int(position)], beam=6)
        assert (one.rank, one.fall, one.beam, one.found) == (place, None, 6, len(ranking))
        assert one.levels[-1].target.score == pytest.approx(float(ranking.score[place - 1]), abs=1e-5)
        assert [hit.item_id for hit in one.hits] == [ids[int(p)] for p in ranking.position[:5]]
    lost = next(i for i in range(len(ids)) if i not in set(ranking.position.tolist()))
    one = explain(retriever, query, ids[lost], beam=6)
    assert one.rank is None and one.fall is not None
    ahead = explain(retriever, query, ids[lost], beam=6, lookahead=True)
    assert ahead.levels[0].target.parts["geometry"] >= one.levels[-1].target.parts["geometry"] - 1e-4
    inside = explain(retriever, query, ids[lost], within=iter([ids[lost], ids[0]]))
    assert inside.rank is not None and inside.levels[-1].prefixes <= 2
    for target, options, words in (
        ("nobody", {}, "the target 'nobody' is not in the index"),
        (ids[0], {"within": [ids[1]]}, "not among the 1 items the search is kept to"),
        (ids[0], {"within": ids[0]}, "ids must be a collection of strings"),
    ):
        with pytest.raises(SiglumError, match=words):
            explain(retriever, query, target, **options)


@pytest.fixture
def fallen(make_system) -> Explanation:
    system = make_system(0)
    every = (explained(followed(system, "fused", item, 3, first_residual=1), f"x{item}") for item in range(24))
    return next(one for one in every if one.fall is not None and one.fall is not one.levels[-1])


@given(seed=SEEDS, beam=st.integers(1, 12), target=st.integers(0, 59))
def test_only_levels_below_a_prefix_of_one_item_are_folded(make_system, seed: int, beam: int, target: int) -> None:
    one = explained(followed(make_system(seed, items=60), "fused", target, beam, first_residual=1), f"x{target}", beam)
    groups = fold_tail(one)
    assert [level for group in groups for level in group] == list(one.levels)
    told = [group[-1] for group in groups]
    assert one.levels[-1] in told and (one.fall is None or one.fall in told)
    for group in groups:
        if len(group) > 1:
            assert all(one.levels[one.levels.index(level) - 1].target.items == 1 for level in group)
    alone = [level for level in one.levels if level.target.items == 1]
    assert len([group for group in groups if group[-1] in alone]) <= 3  # the first, up to the fall, and below it


def test_folded_levels_are_named_by_their_ends(make_system) -> None:
    levels = followed(make_system(0), "fused", 3, 4, first_residual=1)
    assert (name_group(levels[:1]), name_group(levels[:3]), name_group(levels[2:3])) == ("M", "M–2", "2")


def page_of(*given: Any) -> Element:
    return parse(render_explanation(*given))


@settings(max_examples=15)
@given(seed=SEEDS, beam=st.integers(1, 12), target=st.integers(0, 59))
def test_the_tree_has_a_box_for_every_prefix_told_and_keeps_within_its_width(
    make_system, seed: int, beam: int, target: int
) -> None:
    one = explained(followed(make_system(seed, items=60), "fused", target, beam, first_residual=1), f"x{target}", beam)
    page, groups = page_of(one, Query(id="q"), {}, "run"), fold_tail(one)
    svg = page.find(".//figure/svg")
    assert svg is not None
    boxes = [group for group in svg.iter("g") if group.find("rect") is not None]
    lines = [path.attrib["class"].split()[1] for path in svg.iter("path") if "line" in path.attrib["class"].split()]
    wanted = [{p.codes for p in (*group[-1].best[:3], group[-1].last, group[-1].target)} for group in groups]
    assert len(boxes) == sum(map(len, wanted))
    folded = any(len(group) > 1 for group in groups)
    assert len(lines) == len(boxes) or (folded and len(lines) < len(boxes))
    for box in boxes:
        rect = box.find("rect")
        assert rect is not None
        assert float(rect.attrib["x"]) + float(rect.attrib["width"]) <= WIDTH
    kinds = [box.get("class") for box in boxes if box.get("class") != "other"]
    assert kinds == ["mine" if g[-1].target.kept else "fell" if g[-1] is one.fall else "out" for g in groups]
    assert [kind for kind in lines if kind != "other"] == kinds  # the target's way is whole
    words = said(svg)
    assert ("falls here" in words) == (one.fall is not None)
    assert (f"✓ rank {one.rank}" in words) == (one.fall is None)
    table = next(table for table in page.iter("table") if said(table.find("caption")).startswith("The target on"))
    assert [said(head) for head in table.iter("th") if head.get("scope") == "row"] == [*map(name_group, groups)]
    assert len(list(page.iter("details"))) == len(groups)


def test_the_page_stands_alone(fallen: Explanation) -> None:
    red = np.full((4, 4, 3), [200, 0, 0], np.uint8)
    items = {name: Item(id=name, text=f"<{name}> & more") for name in fallen.levels[0].best[0].examples}
    items |= {fallen.target: Item(id=fallen.target, image=red), "x99": Item(id="x99", image="no-such-file.png")}
    query = Query(id="q1", text="a <red> dog", image=red, instruction="Find it.")
    text = render_explanation(fallen, query, items, "run <one>")
    assert text == render_explanation(fallen, query, dict(items), "run <one>")
    assert not re.search(r"https?:|src=|url\(|<script|@import", text)
    page = parse(text)
    pictures = {one.attrib["id"]: one.attrib["href"] for one in page.iter("image")}
    assert set(pictures) == {"picture0", "picture1"}
    assert all(data.startswith("data:image/jpeg;base64,") for data in pictures.values())
    assert {one.attrib["href"] for one in page.iter("use")} == {f"#{name}" for name in pictures}
    assert "Find it. a <red> dog" in all_said(page, "p") and all_said(page, "h1") == ["run <one>"]
    assert " ".join(all_said(page, "p", "finding") + all_said(page, "p", "lead")) == " ".join(tell(fallen))
    assert "prefers-color-scheme: dark" in text and "width=device-width" in text
    opened = [said(one.find("summary")) for one in page.iter("details") if "open" in one.attrib]
    assert fallen.fall is not None and opened == [f"Level {fallen.fall.level}"]


def test_the_page_needs_no_items(fallen: Explanation) -> None:
    page = page_of(fallen, Query(id="q1"), {}, "run")
    assert not {"image", "foreignObject"} & {one.tag for one in page.iter()}
    assert fallen.target in said(page) and "q1" in all_said(page, "span", "id")
