"""A run inside MTEB: `mteb.evaluate` on local tasks of the drawn world gives Siglum's own numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from siglum import Retriever, SiglumError
from siglum.config import QueryConfig
from siglum.data.pictures import load_picture
from siglum.data.tasks import TASKS
from siglum.encode.builtin import BuiltinEncoder
from siglum.generate.query import QueryHead
from siglum.lab.mteb import WIDEST, SiglumSearch
from siglum.lab.world.collection import World
from siglum.measure.evaluate import evaluate_systems
from siglum.measure.systems import open_systems
from siglum.run.folder import RunFolder
from siglum.types import Item, Query

mteb = pytest.importorskip("mteb")
datasets = pytest.importorskip("datasets")

LETTERS = {"t": "text", "i": "image"}
PAGE = Path(__file__).parents[3] / "docs" / "mteb.md"


def table(rows: Sequence[Item] | Sequence[Query], **columns: Any) -> Any:
    """Items or queries as the data set that MTEB would load, pictures as PNG."""
    from PIL import Image

    found: dict[str, Any] = {"id": [row.id for row in rows], **columns}
    if any(row.text for row in rows):
        found["text"] = [row.text for row in rows]
    pictures = [None if row.image is None else load_picture(row.image, BuiltinEncoder.picture_size) for row in rows]
    if any(picture is not None for picture in pictures):
        found["image"] = [None if picture is None else Image.fromarray(picture) for picture in pictures]
    made = datasets.Dataset.from_dict(found)
    return made.cast_column("image", datasets.Image()) if "image" in found else made


def about(category: str, prompt: Any = None) -> Any:
    return mteb.TaskMetadata(
        name=f"World{category.upper()}",
        description="The drawn world.",
        dataset={"path": "nowhere", "revision": "1"},
        type="Any2AnyRetrieval",
        category=category,
        modalities=[LETTERS[letter] for letter in LETTERS if letter in category],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="hit_rate_at_10",
        prompt=prompt,
    )


def local_task(
    category: str, corpus: Any, queries: Any, positives: Mapping[str, Sequence[str]], top_ranked: Any = None
) -> Any:
    """A task of MTEB whose data are at hand."""

    class Local(mteb.abstasks.AbsTaskRetrieval):
        metadata = about(category)

        def load_data(self, *_: Any, **__: Any) -> None:
            qrels = {query: dict.fromkeys(found, 1) for query, found in positives.items()}
            split = {"corpus": corpus, "queries": queries, "relevant_docs": qrels, "top_ranked": top_ranked}
            self.dataset, self.data_loaded = {"default": {"test": split}}, True

    return Local()


def scores(model: SiglumSearch, *tasks: Any) -> dict[str, dict[str, float]]:
    found = mteb.evaluate(model, tasks, cache=None, show_progress_bar=False, co2_tracker=False)
    return {result.task_name: result.scores["test"][0] for result in found.task_results}


def world_task(world: World, category: str, top_ranked: Any = None) -> Any:
    corpus = [world.item(name) for name in world.pool("test", category)]
    queries = list(world.queries("test", category))
    rows = table(queries, instruction=[query.instruction for query in queries])
    return local_task(category, table(corpus), rows, {query.id: query.positives for query in queries}, top_ranked)


@pytest.fixture(scope="module")
def model(world_run: Path) -> SiglumSearch:
    """The run at its own beam."""
    return SiglumSearch(world_run, beam=Retriever.load(world_run).config.beam)


def ask(model: SiglumSearch, corpus: Any, queries: Any, task: Any, **options: Any) -> dict[str, dict[str, float]]:
    model.index(corpus, task_metadata=task, hf_split="test", hf_subset="default", encode_kwargs={}, num_proc=None)
    options = {"top_k": 10, "hf_split": "test", "hf_subset": "default", "num_proc": None} | options
    return model.search(queries, task_metadata=task, encode_kwargs={"batch_size": 5}, **options)


def test_hit_rate_is_the_success_that_siglum_measures(model: SiglumSearch, world_run: Path, world: World) -> None:
    """All eight tasks: every modality of queries and documents, instructions joined."""
    systems = open_systems(RunFolder(world_run), "test")
    assert systems.own is not None
    own = evaluate_systems(systems.vectors, systems.vectors.of_split("test"), {"own": systems.own}, union=False)
    found = scores(model, *(world_task(world, category) for category in TASKS))
    assert isinstance(model, mteb.SearchProtocol)
    for category in TASKS:
        here, there = own.tasks[category]["own"], found[f"World{category.upper()}"]
        names = {f"hit_rate_at_{k}": f"success@{k}" for k in (1, 5, 10)} | {
            "ndcg_at_10": "ndcg@10",
            "mrr_at_10": "mrr@10",
        }
        for theirs, ours in names.items():
            assert there[theirs] == pytest.approx(here[ours], abs=1e-5), (category, theirs)
    assert 0.1 < np.mean([found[f"World{category.upper()}"]["hit_rate_at_10"] for category in TASKS]) < 1


def test_the_prompt_of_a_task_is_joined_to_its_queries(world_run: Path, world: World) -> None:
    retriever, prompt = Retriever.load(world_run), "Show me a drawing of this."
    corpus = table([world.item(name) for name in world.pool("test", "t2i")])
    queries = [replace(query, instruction=None) for query in world.queries("test", "t2i")]
    for task, instruction, instructions in (
        (about("t2i", {"query": prompt}), prompt, True),
        (about("t2i", prompt), prompt, True),
        (about("t2i", {"document": prompt}), None, True),
        (about("t2i", prompt), None, False),
    ):
        model = SiglumSearch(retriever, instructions=instructions, beam=retriever.config.beam)
        found = ask(model, corpus, table(queries), task)
        for query in queries[:8]:
            hits = retriever.search(query.text, instruction=instruction, within=list(corpus["id"]))
            assert list(found[query.id]) == [hit.item_id for hit in hits]
    plain = ask(SiglumSearch(retriever, instructions=False), corpus, table(queries), about("t2i", prompt))
    assert plain != ask(SiglumSearch(retriever), corpus, table(queries), about("t2i", prompt))


def test_a_title_stands_before_its_text(model: SiglumSearch) -> None:
    split = table([Item(id="a", text="left of a blue ring"), Item(id="b", text="a heart ")], title=["a red star", ""])
    whole = table([Item(id="a", text="a red star left of a blue ring"), Item(id="b", text="a heart")])
    query = table([Query(id="q", text="a star")])
    assert ask(model, split, query, about("t2t")) == ask(model, whole, query, about("t2t"))
    untitled = split.remove_columns("title")
    assert ask(model, split, query, about("t2t")) != ask(model, untitled, query, about("t2t"))


def test_scores_fall_strictly_where_codes_are_equal(model: SiglumSearch) -> None:
    corpus = table([Item(id=f"d{i}", text="three green hearts") for i in (3, 1, 2)])
    found = ask(model, corpus, table([Query(id="q", text="green hearts")]), about("t2t"))["q"]
    assert list(found) == ["d3", "d1", "d2"], "equal codes come in the order of the corpus"
    assert (np.diff(np.array(list(found.values()), np.float32)) < 0).all()


def test_the_beam_bounds_what_comes_out(world_run: Path, world: World) -> None:
    retriever = Retriever.load(world_run)
    retriever.config = replace(retriever.config, beam=2)
    corpus = table([world.item(f"s{number:07d}-i") for number in range(160)])
    queries = table([Query(id="q", text="a red star")])

    def sequences(beam: int | None, top_k: int) -> int:
        model = SiglumSearch(retriever, beam=beam)
        found = ask(model, corpus, queries, about("t2i"), top_k=top_k)["q"]
        assert len(found) <= top_k
        return len({tuple(row) for row in model.indexed.index.codes_of(found).tolist()})

    assert sequences(3, 1000) == 3
    assert sequences(None, 1) == 1
    assert 2 < sequences(None, 20) <= 20
    assert sequences(None, 1000) == WIDEST
    assert len(retriever.index) != 160, "the retriever itself is left as it was"


def test_queries_are_answered_from_their_own_candidates(model: SiglumSearch, world: World) -> None:
    pool, queries = list(world.pool("test", "i2t")), list(world.queries("test", "i2t"))
    ranked = {query.id: [*pool[i : i + 3], "left-out"] for i, query in enumerate(queries[:-1])}
    task = world_task(world, "i2t")
    task.load_data()
    split = task.dataset["default"]["test"]
    found = ask(model, split["corpus"], split["queries"], task.metadata, top_ranked=ranked)
    assert list(found) == [query.id for query in queries]
    assert found[queries[-1].id] == {}
    for query in queries[:-1]:
        assert set(found[query.id]) == set(ranked[query.id]) - {"left-out"}
    assert scores(model, world_task(world, "i2t", ranked))["WorldI2T"]["hit_rate_at_5"] == round(
        1 - 1 / len(queries), 5
    )


def test_what_cannot_be_encoded_is_told_and_counts_as_a_miss(model: SiglumSearch) -> None:
    corpus = table([Item(id="a", text="a red star"), Item(id="b", text=" "), Item(id="c", text="?!")])
    queries = table([Query(id="q", text="a red star"), Query(id="blank", text="")])
    with pytest.warns(UserWarning, match="2 of 3 documents of WorldT2T"):
        found = scores(model, local_task("t2t", corpus, queries, {"q": ["a"], "blank": ["a"]}))
    assert found["WorldT2T"]["hit_rate_at_1"] == 0.5
    with pytest.raises(SiglumError, match="no document with a text or a picture"):
        ask(model, corpus.select([1, 2]), queries, about("t2t"))


def test_pairs_may_lack_a_part(model: SiglumSearch, world: World) -> None:
    both, image, text = world.item("s0000000-it"), world.item("s0000001-i"), world.item("s0000002-t")
    ask(model, table([both, image, text]), table([Query(id="q", text="a star")]), about("t2it"))
    codes = model.indexed.index.codes_of([both.id, image.id, text.id])
    assert codes[:, 0].tolist() == [2, 0, 1], "the first code is the modality"


def test_items_of_one_leaf_can_be_ordered_by_their_vectors(world_run: Path) -> None:
    retriever = Retriever.load(world_run)
    retriever.config = replace(retriever.config, leaf_order="dense")
    corpus = table([Item(id=name, text="a red star") for name in "ab"])
    assert set(ask(SiglumSearch(retriever), corpus, table([Query(id="q", text="star")]), about("t2t"))["q"]) == {
        "a",
        "b",
    }


def with_head(run: Path) -> Retriever:
    """The retriever of a run with a query head that has learnt nothing."""
    found, size = Retriever.load(run), QueryConfig(members=1, hidden=8)
    found.head = QueryHead(size, found.tokenizer.quantizer.dim, BuiltinEncoder.image_dim, BuiltinEncoder.text_dim)
    return found


def test_a_query_head_is_part_of_the_model(model: SiglumSearch, world_run: Path) -> None:
    texts = table([Item(id=name, text=f"a {name} star") for name in ("red", "blue", "green")])
    assert ask(SiglumSearch(with_head(world_run)), texts, texts, about("t2t")) != ask(model, texts, texts, about("t2t"))


def test_the_revision_names_models_and_settings(world_run: Path) -> None:
    meta = SiglumSearch(world_run).mteb_model_meta
    assert meta.name == "siglum/run" and set(meta.modalities) == {"text", "image"}
    assert SiglumSearch(world_run, name="me/mine").mteb_model_meta.name == "me/mine"
    changed = Retriever.load(world_run)
    next(changed.decoder.parameters()).data += 1  # type: ignore[union-attr]
    others = [SiglumSearch(world_run, beam=7), SiglumSearch(world_run, instructions=False), SiglumSearch(changed)]
    others.append(SiglumSearch(with_head(world_run)))
    revisions = [other.mteb_model_meta.revision for other in others]
    assert len({meta.revision, *revisions}) == 5
    assert SiglumSearch(Retriever.load(world_run)).mteb_model_meta.revision == meta.revision


def test_what_cannot_work_is_refused_in_one_sentence(
    model: SiglumSearch, world_run: Path, subtests: pytest.Subtests
) -> None:
    texts = table([Item(id="a", text="a red star")])
    bare = Retriever(model.retriever.tokenizer, model.retriever.index)
    for message, call in {
        "has no encoder": lambda: SiglumSearch(bare),
        "at least 1, not 0": lambda: SiglumSearch(world_run, beam=0),
        "organisation/model, not 'mine'": lambda: SiglumSearch(world_run, name="mine"),
        "call index first": lambda: SiglumSearch(world_run).search(texts, task_metadata=about("t2t"), top_k=1),
        "have no column image; they have id, text": lambda: ask(model, texts, texts, about("t2it")),
        "asks for audio": lambda: ask(model, texts, texts, about("t2a")),
        "the text of 'q' is a list": lambda: ask(
            model, texts, datasets.Dataset.from_dict({"id": ["q"], "text": [["hello"]]}), about("t2t")
        ),
    }.items():
        with subtests.test(message):
            with pytest.raises(SiglumError, match=message) as error:
                call()
            assert str(error.value).count(". ") == 0


def test_the_nine_tasks_of_the_page_are_those_of_mteb() -> None:
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines() if "→" in line
    ]
    tasks = {task.metadata.name: task.metadata for task in mteb.get_tasks(tasks=[row[1] for row in rows])}
    assert len(tasks) == len(rows) == 9
    snippet = re.findall(r'^    "(\w+)",$', PAGE.read_text(), re.M)
    assert snippet == [row[1] for row in rows]
    for paper, name, dataset, queries, pool in rows:
        known, stats = tasks[name], tasks[name].descriptive_stats["test"]
        assert re.sub(r"[(),]", "", paper).split()[1].replace("→", "2") == known.category
        assert dataset == known.dataset["path"]
        assert (queries, pool) == (f"{stats['num_queries']:,}", f"{stats['num_documents']:,}")
        assert known.prompt["query"]
