"""Send malformed requests to a service of a run: none may end in an error of its own, and its memory must stay flat.

python benchmarks/serve_fuzz.py --run runs/tiny --requests 5000
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent))
from servelib.malformed import Sent, request
from servelib.server import Server, write_result


def send(address: str, sent: Sent) -> int:
    """Send one request over a connection of its own, and return the status; 0 where there was no answer."""
    place = urlsplit(address)
    wire = HTTPConnection(place.hostname or "", place.port, timeout=30)
    method, path, headers, body = sent
    try:
        wire.request(method, path, body, {name: value for name, value in headers.items() if value})
        return wire.getresponse().status
    except OSError:
        return 0
    finally:
        wire.close()


def main() -> None:
    """Send, count and tell."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", default="runs/tiny")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--out", default="")
    asked = parser.parse_args()
    statuses: Counter[int] = Counter()
    broken: list[int] = []
    with Server(asked.run, "--read-only") as server:
        memory = []
        for number in range(asked.requests):
            status = send(server.address, request(number))
            statuses[status] += 1
            if status >= 500 or status == 0:
                broken.append(number)
            if number % max(1, asked.requests // 10) == 0:
                memory.append(server.megabytes())
        memory.append(server.megabytes())
        healthy = send(server.address, ("GET", "/ready", {}, b"")) == 200
    # The first tenth warms caches and pools; growth is what comes after it.
    growth = memory[-1] / memory[1] - 1
    found = {
        "requests": asked.requests,
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "broken": broken[:20],
        "healthy": healthy,
        "megabytes": memory,
        "growth": round(growth, 4),
    }
    print(json.dumps(found, indent=1))
    write_result(asked.out, found)


if __name__ == "__main__":
    main()
