"""A service under mixed load, and under kills: no error, no write lost that was acknowledged, and flat memory.

    python benchmarks/serve_load.py --run runs/demo --minutes 10 --out benchmarks/results/serve/load.json
    python benchmarks/serve_load.py --run runs/tiny --kills 50 --out benchmarks/results/serve/kills.json

Load is 32 clients, of whose requests one in twenty adds or removes an item. A kill ends the process at a random moment
of such a load; then the run is opened by the library and asked for every item whose write was acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from servelib.load import Result, Wire, json_body
from servelib.server import Server, write_result

WRITES = 0.05


@dataclass(slots=True)
class Ledger:
    """What was asked to be written, and what was acknowledged."""

    name: str
    begun: set[str] = field(default_factory=set)
    added: set[str] = field(default_factory=set)
    leaving: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)

    def faults(self, here: set[str]) -> list[str]:
        """Return what a run does not hold that it should, and what it holds that it should not."""
        here = {name for name in here if name.startswith(f"{self.name}.")}
        lost = self.added - self.leaving - here
        return [
            *(f"{name} was added and is gone" for name in sorted(lost)),
            *(f"{name} was removed and is there" for name in sorted(self.removed & here)),
            *(f"{name} is there and was never sent" for name in sorted(here - self.begun)),
        ]


class Mixed:
    """Clients that search, and now and then add or remove."""

    def __init__(self, address: str, texts: list[str], ledger: Ledger, share: float = WRITES, seed: int = 0) -> None:
        """Begin nothing yet."""
        self.address, self.texts, self.ledger, self.share, self.seed = address, texts, ledger, share, seed
        self.searches, self.writes = Result(), Result()
        self.over = False

    async def run(self, clients: int, seconds: float) -> None:
        """Have clients work for so long, or until the service is gone."""
        end, begun = time.perf_counter() + seconds, time.perf_counter()
        await asyncio.gather(*(self.client(number, end) for number in range(clients)))
        self.searches.seconds = self.writes.seconds = time.perf_counter() - begun

    async def client(self, number: int, end: float) -> None:
        """Work as one client."""
        dice, count, mine = Random(f"{self.seed} {number}"), 0, list[str]()
        try:
            async with Wire(self.address) as wire:
                while time.perf_counter() < end and not self.over:
                    count += 1
                    if dice.random() >= self.share:
                        body = {"queries": [{"text": dice.choice(self.texts)}], "k": 10}
                        await self._timed(self.searches, wire, "/search", body)
                    elif mine and dice.random() < 0.45:
                        await self._remove(wire, mine.pop(dice.randrange(len(mine))))
                    elif await self._add(wire, name := f"{self.ledger.name}.{number}.{count}", dice.choice(self.texts)):
                        mine.append(name)
        except (OSError, asyncio.IncompleteReadError):
            if not self.over:
                self.searches.statuses[0] += 1

    async def _timed(self, result: Result, wire: Wire, path: str, body: Any, method: str = "POST") -> int:
        begun = time.perf_counter()
        status, _ = await wire.send(path, None if body is None else json_body(body), method)
        result.times.append(time.perf_counter() - begun)
        result.statuses[status] += 1
        return status

    async def _add(self, wire: Wire, name: str, text: str) -> bool:
        self.ledger.begun.add(name)
        done = await self._timed(self.writes, wire, "/items", {"items": [{"id": name, "text": text}]}) == 200
        if done:
            self.ledger.added.add(name)
        return done

    async def _remove(self, wire: Wire, name: str) -> None:
        self.ledger.leaving.add(name)
        if await self._timed(self.writes, wire, f"/items/{name}", None, "DELETE") == 200:
            self.ledger.removed.add(name)


def texts_of(run: Path) -> list[str]:
    """Return texts of a run's items, to search with and to add."""
    from siglum.search.retriever import Retriever

    index = Retriever.load(run).index
    kept = [json.loads(fields).get("text") for fields in index.fields_of(list(index.ids)[:3000]) if fields]
    return [text for text in kept if text][:500]


def ids_of(run: Path) -> set[str]:
    """Return the ids that a run's index holds, as the library sees it."""
    from siglum.search.retriever import Retriever

    return set(Retriever.load(run).index.ids)


def under_load(run: Path, minutes: float, clients: int) -> dict[str, Any]:
    """Serve mixed load for some minutes."""
    texts, ledger, memory = texts_of(run), Ledger("load"), list[float]()

    async def work(server: Server) -> Mixed:
        await Mixed(server.address, texts, ledger, seed=1).run(clients, min(20.0, 6 * minutes))  # warm
        mixed = Mixed(server.address, texts, ledger, seed=2)
        ledger.name = "load2"
        task = asyncio.ensure_future(mixed.run(clients, 60 * minutes))
        while not task.done():
            memory.append(server.megabytes())
            await asyncio.wait([task], timeout=6 * minutes)
        memory.append(server.megabytes())
        await task
        return mixed

    with Server(run) as server:
        mixed = asyncio.run(work(server))
        errors = list(server.errors)
    ledger.begun = {name for name in ledger.begun if name.startswith("load2.")}
    ledger.added &= ledger.begun
    return {
        "minutes": minutes,
        "clients": clients,
        "searches": mixed.searches.told(),
        "writes": mixed.writes.told(),
        "megabytes": memory,
        "memory_growth": round(memory[-1] / memory[0] - 1, 4),
        "lost": ledger.faults(ids_of(run)),
        "errors": errors[:5],
    }


def under_kills(run: Path, kills: int, clients: int) -> dict[str, Any]:
    """Kill the service again and again, each time on the run that the last kill left."""
    texts, faults, acknowledged, moments = texts_of(run), list[str](), 0, list[float]()
    for number in range(kills):
        ledger, dice = Ledger(f"kill{number}"), Random(f"kill {number}")
        server = Server(run)
        moment = 0.2 + 1.8 * dice.random()

        async def work(server: Server = server, ledger: Ledger = ledger, moment: float = moment) -> None:
            mixed = Mixed(server.address, texts, ledger, share=0.6, seed=100)
            task = asyncio.ensure_future(mixed.run(clients, 30))
            await asyncio.sleep(moment)
            mixed.over = True
            server.popen.kill()
            await task

        asyncio.run(work())
        server.kill()
        acknowledged += len(ledger.added) + len(ledger.removed)
        moments.append(round(moment, 3))
        faults += ledger.faults(ids_of(run))
    return {"kills": kills, "clients": clients, "acknowledged": acknowledged, "faults": faults, "seconds": moments}


def main() -> None:
    """Work on a copy of a run, and tell."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", default="runs/demo")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--kills", type=int, default=0, help="kill the service so often instead")
    parser.add_argument("--out", default="")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        shutil.copytree(asked.run, run, ignore=shutil.ignore_patterns("baselines", "6-report", "checkpoint*", ".lock"))
        if asked.kills:
            found = under_kills(run, asked.kills, asked.clients)
        else:
            found = under_load(run, asked.minutes, asked.clients)
    print(json.dumps(found, indent=1))
    write_result(asked.out, found)


if __name__ == "__main__":
    main()
