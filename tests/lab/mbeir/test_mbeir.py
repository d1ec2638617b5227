"""M-BEIR's files become a collection: every form the real files come in, and everything that can be missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbeir_files import append_lines, candidate, make_root, question, write_lines, write_qrels
from siglum.data.collection import Collection, assemble
from siglum.data.jsonl import JsonLines
from siglum.lab.mbeir.layout import NINE, SIXTEEN, format_string, hash_id, metric_ks, unhash_id
from siglum.lab.mbeir.reader import read_mbeir
from siglum.types import Features, Modality, Query, SiglumError

TASKS = ("mscoco_task0", "webqa_task1", "oven_task8", "infoseek_task6")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("mbeir") / "root", TASKS, scenes=3)


@pytest.fixture
def root(drawn: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(drawn, tmp_path / "root"))


def by_id(collection: Collection, split: str) -> dict[str, Query]:
    return {query.id: query for query in collection.queries[split]}


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def training(root: Path) -> Path:
    return root / "query/union_train/mbeir_union_up_train.jsonl"


def test_a_plain_root_is_read_whole(root: Path) -> None:
    found = read_mbeir(root, tasks=TASKS)
    assert found.notes == {}
    assert {split: len(queries) for split, queries in found.queries.items()} == {"train": 48, "val": 12, "test": 12}
    assert len(found.items) == len({item.id for item in found.items}) == 48 + 24
    assert set(found.pools) == {(split, task) for split in ("val", "test") for task in TASKS}
    assert len(found.pools["test", "mscoco_task0"]) == 3
    assert list(found.pools["test", "webqa_task1"]) == list(found.pools["val", "webqa_task1"])
    ids = [query.id for queries in found.queries.values() for query in queries]
    assert len(set(ids)) == len(ids)
    for split in ("val", "test"):
        for query in found.queries[split]:
            assert len(query.positives) == 1
            assert query.positives[0] in list(found.pools[split, query.task])
    kinds = {item.id: item.modality for item in found.items}
    assert kinds[by_id(found, "test")["5:0"].positives[0]] is Modality.IMAGE_TEXT
    assert all(Path(item.image).is_file() for item in found.items if item.image is not None)


def test_ids_of_queries_tell_the_splits_apart(root: Path) -> None:
    found = read_mbeir(root, tasks=["webqa_task1"])
    assert [query.id for query in found.queries["test"]] == ["2:0", "2:1", "2:2"]
    assert [query.id for query in found.queries["val"]] == ["2:0@val", "2:1@val", "2:2@val"]


def test_positives_may_be_strings_or_objects(root: Path) -> None:
    plain = list(read_mbeir(root, tasks=TASKS).queries["train"])
    lines = lines_of(training(root))
    for line in lines[::2]:
        line["pos_cand_list"] = [{"did": did} for did in line["pos_cand_list"]]
    write_lines(training(root), lines)
    assert list(read_mbeir(root, tasks=TASKS).queries["train"]) == plain


def test_a_training_line_gives_one_pair_drawn_by_seed(root: Path) -> None:
    lines = lines_of(training(root))
    dids = [line["pos_cand_list"][0] for line in lines]
    lines[0]["pos_cand_list"] = dids[:12]
    write_lines(training(root), lines)
    drawn = {read_mbeir(root, tasks=TASKS, seed=seed).queries["train"][0].positives for seed in range(8)}
    assert len(drawn) > 1
    assert all(len(found) == 1 and found[0] in dids[:12] for found in drawn)


def test_up_sampled_queries_get_ids_of_their_own(root: Path) -> None:
    lines = lines_of(training(root))
    append_lines(training(root), [lines[0], lines[0], lines[1]])
    found = read_mbeir(root, tasks=TASKS)
    assert [query.id for query in list(found.queries["train"])[-3:]] == ["9:0@train#2", "9:0@train#3", "9:1@train#2"]
    assert found.queries["train"][48].positives == found.queries["train"][0].positives
    assert found.notes == {"train: lines that repeat a query (up-sampling)": 3}


def test_training_queries_without_a_candidate_are_dropped_and_counted(root: Path) -> None:
    append_lines(training(root), [question("9:400", "text", ["9:9999"], text="lost"), question("9:401", "text", [])])
    found = read_mbeir(root, tasks=TASKS)
    assert len(found.queries["train"]) == 48
    assert found.notes["train: queries dropped, without a positive in their pool"] == 2
    assert found.notes["train: positives outside their pool"] == 1


def test_positives_of_another_dataset_count_only_where_the_pool_holds_them(root: Path) -> None:
    path = root / "qrels/test/mbeir_infoseek_task6_test_qrels.txt"
    oven = list(read_mbeir(root, tasks=TASKS).pools["test", "oven_task8"])
    judged = [tuple(line.split()[::2][:2]) for line in path.read_text().splitlines()]
    # The first query gains a positive of OVEN, the last one has nothing else.
    write_qrels(path, [judged[0], (judged[0][0], oven[0]), judged[1], (judged[2][0], oven[1])], 6)
    local, union = read_mbeir(root, tasks=TASKS), read_mbeir(root, tasks=TASKS, union=True)
    first, last = judged[0][0], judged[2][0]
    assert by_id(local, "test")[first].positives == (judged[0][1],)
    assert by_id(local, "test")[last].positives == ()
    assert local.notes["test: positives outside their pool"] == 2
    assert local.notes["test: queries without a positive in their pool"] == 1
    assert set(by_id(union, "test")[first].positives) == {judged[0][1], oven[0]}
    assert by_id(union, "test")[last].positives == (oven[1],)
    assert union.notes == {}


def test_the_union_pool_is_one_sequence_for_all_tasks(root: Path) -> None:
    found = read_mbeir(root, tasks=TASKS, union=True)
    pools = [found.pools["test", task] for task in TASKS]
    assert all(pool is pools[0] for pool in pools)
    wanted = [line["did"] for line in lines_of(root / "cand_pool/global/mbeir_union_test_cand_pool.jsonl")]
    assert list(pools[0]) == [pools[0][i] for i in range(len(wanted))] == wanted
    assert len(found.pools["val", "mscoco_task0"]) == 3


def test_candidates_lacking_a_part(root: Path) -> None:
    path = root / "cand_pool/local/mbeir_oven_task8_cand_pool.jsonl"
    picture = lines_of(path)[0]["img_path"]
    append_lines(
        path,
        [
            candidate("5:900", "image,text", image=picture),
            candidate("5:901", "image,text", text="words alone"),
            candidate("5:902", "image,text"),
            candidate("5:903", "text", text=" \r"),
            candidate("5:900", "image,text", image=picture),
        ],
    )
    found = read_mbeir(root, tasks=TASKS)
    items = {item.id: item for item in found.items}
    assert (items["5:900"].text, items["5:900"].image) == (None, root / picture)
    assert (items["5:901"].text, items["5:901"].image) == ("Words alone.", None)
    assert not {"5:902", "5:903"} & set(items)
    assert found.notes == {
        "candidates dropped, listed twice in one pool": 1,
        "candidates dropped, with neither text nor picture": 2,
        "candidates without a part their modality names": 3,
    }
    assert list(found.pools["test", "oven_task8"])[-2:] == ["5:900", "5:901"]


def test_queries_lacking_a_part_keep_their_instruction(root: Path) -> None:
    path = root / "query/test/mbeir_oven_task8_test.jsonl"
    lines = lines_of(path)
    lines[0]["query_txt"] = None
    lines[1]["query_img_path"] = None
    write_lines(path, lines)
    found = read_mbeir(root, tasks=TASKS, prompt="first")
    queries = by_id(found, "test")
    assert queries["5:0"].text == "Find what fits oven."
    assert queries["5:0"].image is not None
    assert queries["5:1"].image is None
    assert found.notes == {"queries without a part their modality names": 2}


def test_prompts_are_of_the_dataset_and_the_modalities(root: Path) -> None:
    path = root / "instructions/query_instructions.tsv"
    path.write_text(path.read_text() + "text\ttext\tmscoco\t9\twrong modality\t\t\t\n")
    lines = lines_of(training(root))
    found = read_mbeir(root, tasks=TASKS, prompt="first")
    for query, line in zip(found.queries["train"], lines, strict=True):
        name = {"9": "mscoco", "2": "webqa", "5": "oven", "6": "infoseek"}[line["qid"].split(":")[0]]
        assert query.text == format_string(f"Find what fits {name}. {line['query_txt']}")
        assert query.instruction is None


def test_seeded_prompts_do_not_depend_on_order(root: Path) -> None:
    found = by_id(read_mbeir(root, tasks=TASKS, seed=3), "train")
    assert len({query.text.split()[0] for query in found.values()}) == 4
    write_lines(training(root), lines_of(training(root))[::-1])
    assert by_id(read_mbeir(root, tasks=TASKS[::-1], seed=3), "train") == found
    other = by_id(read_mbeir(root, tasks=TASKS, seed=4), "train")
    assert any(other[name].text != query.text for name, query in found.items())


def test_flickr_is_left_out_of_the_nine_unless_its_files_are_there(tmp_path: Path) -> None:
    eight = [task for task in NINE if task != "flickr30k_task0"]
    found = read_mbeir(make_root(tmp_path / "eight", eight, scenes=1))
    assert sorted({task for _, task in found.pools}) == sorted(eight)
    assert found.notes == {"tasks left out, having no files: flickr30k_task0": 1}
    root = make_root(tmp_path / "nine", NINE, scenes=1)
    found = read_mbeir(root, prompt="first")
    assert {task for _, task in found.pools} == set(NINE)
    # Without prompts of its own it takes COCO's.
    assert by_id(found, "test")["10:0"].text.startswith("Find what fits mscoco. ")
    with pytest.raises(SiglumError, match=r"mbeir_flickr30k_task0_val\.jsonl does not exist"):
        read_mbeir(tmp_path / "eight", tasks=["flickr30k_task0"])


def test_flickr_s_own_training_files_join_the_training(tmp_path: Path) -> None:
    root = make_root(tmp_path / "root", ["mscoco_task0", "flickr30k_task0"], scenes=1)
    assert len(read_mbeir(root, tasks=["mscoco_task0"]).queries["train"]) == 8
    write_lines(root / "cand_pool/local/mbeir_flickr30k_train_cand_pool.jsonl", [candidate("10:700", "text", "a dog")])
    write_lines(root / "query/train/mbeir_flickr30k_train.jsonl", [question("10:9", "text", ["10:700"], "barking")])
    path = root / "instructions/query_instructions.tsv"
    path.write_text(path.read_text() + "text\ttext\tflickr30k\t10\tsay it\t\t\t\n")
    assert len(read_mbeir(root, tasks=["mscoco_task0"]).queries["train"]) == 8
    last = list(read_mbeir(root, tasks=["flickr30k_task0"]).queries["train"])[-1]
    assert (last.id, last.text, last.positives) == ("10:9@train", "Say it. barking.", ("10:700",))


def test_lines_are_parsed_when_asked_for(root: Path) -> None:
    found = read_mbeir(root, tasks=TASKS)
    part = found.items.parts[0]
    assert isinstance(part.lines, JsonLines)
    assert part.hashed_N.dtype == part.lines.offset_N.dtype == np.int64
    assert found.items[5] == found.items[5]
    assert found.items[5] is not found.items[5]
    with pytest.raises(IndexError):
        found.queries["test"].parts[0][3]


@pytest.mark.parametrize(
    "gone",
    [
        "instructions/query_instructions.tsv",
        "query/union_train/mbeir_union_up_train.jsonl",
        "cand_pool/global/mbeir_union_train_cand_pool.jsonl",
        "query/test/mbeir_webqa_task1_test.jsonl",
        "qrels/val/mbeir_webqa_task1_val_qrels.txt",
        "cand_pool/local/mbeir_mscoco_task0_val_cand_pool.jsonl",
    ],
)
def test_a_missing_file_is_named_with_its_origin(root: Path, gone: str) -> None:
    (root / gone).unlink()
    with pytest.raises(SiglumError, match="does not exist; M-BEIR comes from https://") as error:
        read_mbeir(root, tasks=TASKS)
    assert str(root / gone) in str(error.value)


def test_missing_pictures_are_noticed_at_once(root: Path) -> None:
    shutil.rmtree(root / "mbeir_images")
    with pytest.raises(SiglumError, match="mbeir_images is missing"):
        read_mbeir(root, tasks=TASKS)


@pytest.mark.parametrize(
    ("path", "line", "message"),
    [
        ("cand_pool/local/mbeir_webqa_task1_cand_pool.jsonl", candidate("2-7", "text", "a"), "line 7: the id '2-7'"),
        ("cand_pool/local/mbeir_webqa_task1_cand_pool.jsonl", candidate("2:7", "sound", "a"), "line 7: the modality"),
        ("cand_pool/local/mbeir_webqa_task1_cand_pool.jsonl", {"did": "2:7", "modality": "text", "txt": 4}, "txt is 4"),
        ("query/test/mbeir_webqa_task1_test.jsonl", question("2:0", "text", [], "a"), "'2:0' twice"),
        ("query/test/mbeir_webqa_task1_test.jsonl", {"query_modality": "text"}, "line 4: the id None"),
        ("query/union_train/mbeir_union_up_train.jsonl", question("2:3", "text", "2:4", "a"), "must be a list"),
    ],
)
def test_lines_that_cannot_be_are_refused(root: Path, path: str, line: dict, message: str) -> None:
    append_lines(root / path, [line])
    with pytest.raises(SiglumError, match=message):
        read_mbeir(root, tasks=TASKS)


def test_a_torn_line_is_refused(root: Path) -> None:
    path = root / "query/test/mbeir_webqa_task1_test.jsonl"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(SiglumError, match="line 3: this is not valid JSON"):
        read_mbeir(root, tasks=TASKS)


def test_files_that_do_not_belong_together_are_refused(root: Path) -> None:
    write_qrels(root / "qrels/test/mbeir_webqa_task1_test_qrels.txt", [("2:0", "9:0")], 1)
    with pytest.raises(SiglumError, match="do not belong together"):
        read_mbeir(root, tasks=TASKS)


def test_a_prompt_that_is_not_there_is_asked_for_by_name(root: Path) -> None:
    path = root / "instructions/query_instructions.tsv"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "webqa" not in line))
    found = read_mbeir(root, tasks=TASKS)
    with pytest.raises(SiglumError, match="dataset 2, query modality 'text' and candidate modality 'text'"):
        found.queries["test"][3]


def test_tasks_are_chosen_by_name(root: Path) -> None:
    with pytest.raises(SiglumError, match="one of: visualnews_task0, mscoco_task0"):
        read_mbeir(root, tasks=["mscoco_task9"])
    with pytest.raises(SiglumError, match="visualnews_task0_val"):
        read_mbeir(root, tasks=["all"])
    with pytest.raises(SiglumError, match="prompt is 'last'"):
        read_mbeir(root, tasks=TASKS, prompt="last")  # type: ignore[arg-type]
    assert len(SIXTEEN) == 16 and len(NINE) == 9


def test_cut_offs() -> None:
    wide = {task for task in SIXTEEN if metric_ks(task) == (10, 20, 50)}
    assert wide == {"fashion200k_task0", "fashion200k_task3", "fashioniq_task7"}
    assert {metric_ks(task) for task in NINE} == {(1, 5, 10)}


@given(st.integers(0, 10), st.integers(0, 499_999), st.integers(0, 9_999_999))
def test_hashed_ids_round_trip(dataset: int, query: int, item: int) -> None:
    qid, did = f"{dataset}:{query}", f"{dataset}:{item}"
    assert (hash_id(qid, 500_000), hash_id(did, 10_000_000)) == (dataset * 500_000 + query, dataset * 10_000_000 + item)
    assert (unhash_id(hash_id(qid, 500_000), 500_000), unhash_id(hash_id(did, 10_000_000))) == (qid, did)


@pytest.mark.parametrize("name", ["", "9", "9:", ":3", "9:03", "9:-1", "9:500000", "a:1", "9:1:2", None])
def test_other_ids_are_refused(name: str) -> None:
    with pytest.raises(SiglumError, match="the id"):
        hash_id(name, 500_000)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (None, ""),
        ("", ""),
        ('  ""  ', ""),
        ("a cat", "A cat."),
        (' "a\r cat" ', "A cat."),
        ("who?", "Who?"),
        ("stop!", "Stop!"),
        ("Done.", "Done."),
        ("état", "État."),
        ("7 up", "7 up."),
        ('say "yes"', 'Say "yes.'),
    ],
)
def test_format_string(text: str | None, wanted: str) -> None:
    assert format_string(text) == wanted


def test_assembling_drops_pool_items_that_were_not_encoded_and_shares_rows() -> None:
    part = np.ones((3, 2), np.float32)
    there = np.ones(3, bool)
    items = Features(["a", "b", "c"], part, part, there, there)
    queries = Features(["q", "r", "s"], part, part, there, there)
    pool = ["c", "gone", "a"]
    about = [("test", "one", ["a"]), ("test", "two", ["c", "a"]), ("val", "one", [])]
    vectors = assemble(items, queries, about, {("test", "one"): pool, ("test", "two"): pool})
    assert [(task.name, task.query_rows.tolist()) for task in vectors.tasks] == [("one", [0]), ("two", [1])]
    assert vectors.tasks[0].pool_rows is vectors.tasks[1].pool_rows
    assert vectors.tasks[0].pool_rows.tolist() == [2, 0]
    assert [rows.tolist() for rows in vectors.tasks[1].positives] == [[2, 0]]
