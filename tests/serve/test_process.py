"""The service as a process: signals, reloads under load, and kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from random import Random

import httpx
import pytest

from killing import is_running
from serving import Process, serving
from siglum.search.retriever import Retriever

ASK = {"queries": [{"text": "a big red star"}], "k": 3}


class Load:
    """Clients that search, and some that write, until they are told to stop; what was acknowledged is kept."""

    def __init__(self, address: str, clients: int = 4, writers: int = 0, name: str = "") -> None:
        self.address, self.name = address, name
        self.done, self.statuses, self.errors = threading.Event(), list[int](), list[str]()
        self.begun: set[str] = set()
        self.added: set[str] = set()
        self.removed: set[str] = set()
        jobs = [*[self.search] * clients, *[self.write] * writers]
        self.crew = [threading.Thread(target=job, args=(number,)) for number, job in enumerate(jobs)]
        for thread in self.crew:
            thread.start()

    def search(self, number: int) -> None:
        with httpx.Client(base_url=self.address, timeout=30) as http:
            while not self.done.is_set():
                try:
                    answer = http.post("/search", json=ASK)
                    self.statuses.append(answer.status_code)
                except httpx.TransportError as error:
                    self.errors.append(repr(error))
                    return

    def write(self, number: int) -> None:
        dice, count = Random(number), 0
        with httpx.Client(base_url=self.address, timeout=30) as http:
            while not self.done.is_set():
                count += 1
                name = f"{self.name}.{number}.{count}"
                self.begun.add(name)
                try:
                    item = {"id": name, "text": f"a zebra {number} and {count} lions"}
                    if http.post("/items", json={"items": [item]}).status_code == 200:
                        self.added.add(name)
                    mine = sorted(one for one in self.added - self.removed if one.startswith(f"{self.name}.{number}."))
                    if mine and dice.random() < 0.3:
                        gone = dice.choice(mine)
                        self.begun.add(f"-{gone}")
                        if http.delete(f"/items/{gone}").status_code == 200:
                            self.removed.add(gone)
                except httpx.TransportError:
                    return

    def stop(self) -> None:
        self.done.set()
        for thread in self.crew:
            thread.join(60)


def faults(run: Path, load: Load) -> list[str]:
    """Return what was acknowledged and is not so, and what is there that was never asked for."""
    here = {name for name in Retriever.load(run).index.ids if name.startswith(f"{load.name}.")}
    unsure = {name[1:] for name in load.begun if name.startswith("-")} - load.removed
    lost = load.added - load.removed - unsure - here
    back, made_up = load.removed & here, here - load.begun
    return [f"lost {name}" for name in lost] + [f"back {name}" for name in back] + [f"made up {n}" for n in made_up]


def test_it_ends_by_finishing_what_it_took(run_copy: Path) -> None:
    with serving(run_copy) as process:
        load = Load(process.address, clients=3, writers=2, name="w")
        time.sleep(1)
        decoders = [int(pid) for pid in children(process.popen.pid)]
        assert process.stop() == 0
        load.stop()
        assert set(load.statuses) == {200}
        assert len(load.added) > 2 and faults(run_copy, load) == []
        assert decoders and not any(map(is_running, decoders))
        lines = [json.loads(line) for line in process.lines if line.startswith("{")]
        assert {line["endpoint"] for line in lines if line["message"] == "request"} >= {"/search", "/items"}
        assert "zebra" not in "".join(process.lines)


def children(pid: int) -> list[str]:
    return [pid for task in Path(f"/proc/{pid}/task").iterdir() for pid in (task / "children").read_text().split()]


def test_another_run_is_swapped_in_without_dropping_a_request(run_copy: Path, tmp_path: Path) -> None:
    other, place = Path(shutil.copytree(run_copy, tmp_path / "other")), tmp_path / "current"
    before, after = Retriever.load(run_copy), Retriever.load(other)
    after.remove(list(after.index.ids)[10:])
    after.save(other)
    place.symlink_to(run_copy)
    with serving(place) as process, httpx.Client(base_url=process.address, timeout=30) as http:
        load = Load(process.address, clients=3, writers=1, name="w")
        time.sleep(0.3)
        fresh = tmp_path / "fresh"
        fresh.symlink_to(other)
        os.replace(fresh, place)
        process.send(signal.SIGHUP)
        until(lambda: http.get("/about").json()["items"] < len(before))
        time.sleep(0.3)
        place.unlink()
        place.symlink_to(tmp_path / "nothing")
        process.send(signal.SIGHUP)
        until(lambda: any("was not reloaded" in line for line in process.lines))
        assert http.get("/ready").is_success
        load.stop()
        assert set(load.statuses) == {200} and load.errors == []
        metrics = http.get("/metrics").text
        assert 'siglum_reloads_total{outcome="done"} 1.0' in metrics
        assert 'siglum_reloads_total{outcome="refused"} 1.0' in metrics
        assert process.stop() == 0
    both = {*Retriever.load(run_copy).index.ids, *Retriever.load(other).index.ids}
    assert load.added - load.removed - both == set()


def test_the_same_run_is_opened_again_under_writes(run_copy: Path) -> None:
    with serving(run_copy) as process, httpx.Client(base_url=process.address, timeout=30) as http:
        load = Load(process.address, clients=2, writers=2, name="w")
        for number in range(3):
            process.send(signal.SIGHUP)
            until(lambda number=number: f'outcome="done"}} {number + 1}.0' in http.get("/metrics").text)
        load.stop()
        assert set(load.statuses) == {200} and len(load.added) > 3
        assert process.stop() == 0
    assert faults(run_copy, load) == []


def until(done: object, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if done():  # type: ignore[operator]
            return
        time.sleep(0.05)
    pytest.fail("it did not happen in time")


def test_it_goes_on_for_a_while_when_it_is_to_end(run_copy: Path) -> None:
    with serving(run_copy, "--drain", "1") as process, httpx.Client(base_url=process.address) as http:
        process.send(signal.SIGTERM)
        until(lambda: http.get("/ready").status_code == 503)
        assert http.post("/search", json=ASK).status_code == 200
        assert http.get("/health").status_code == 200
        assert process.popen.wait(30) == 0


def kill_once(run: Path, seed: int) -> list[str]:
    """Kill the service at some moment under load, and return what is wrong with the run then."""
    process = Process(run)
    load = Load(process.address, clients=2, writers=3, name=f"k{seed}")
    time.sleep(0.3 + 1.2 * Random(seed).random())
    process.kill()
    load.stop()
    assert load.added, "no write was acknowledged"
    return faults(run, load)


def test_a_kill_loses_nothing_that_was_acknowledged(run_copy: Path) -> None:
    assert kill_once(run_copy, 0) == []
    with serving(run_copy) as process:  # and the run serves on
        assert httpx.post(f"{process.address}/search", json=ASK).status_code == 200


@pytest.mark.long
def test_kills_at_random_points_lose_nothing_that_was_acknowledged(run_copy: Path) -> None:
    assert [fault for seed in range(1, 7) for fault in kill_once(run_copy, seed)] == []
