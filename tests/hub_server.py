"""A stand-in for the Hugging Face hub on loopback: repositories of models, in memory, as huggingface_hub asks for them.

Small files come inside a commit, safetensors as LFS objects beforehand, as on the hub itself.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_secret"


@dataclass
class Hub:
    """What the server holds."""

    url: str = ""
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files by commit."""
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    """Commit by repository and branch."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """LFS objects by their SHA-256."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    private: dict[str, bool] = field(default_factory=dict)

    def files(self, name: str, branch: str = "main") -> dict[str, bytes]:
        return self.commits[self.branches[name][branch]]

    def commit(self, name: str, branch: str, files: dict[str, bytes]) -> str:
        content = json.dumps([name, branch, len(self.commits), sorted(files)])
        mark = hashlib.sha1(content.encode()).hexdigest()
        self.commits[mark] = files
        self.branches.setdefault(name, {})[branch] = mark
        return mark


@contextmanager
def serve() -> Iterator[Hub]:
    """Run the stand-in until the block ends."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, value: Any, code: int = 200, **headers: str) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _handle(self) -> None:
        path, body = unquote(urlsplit(self.path).path), self._body()
        self.hub.asked.append((self.command, path))
        for pattern, act in ROUTES:
            found = re.fullmatch(pattern, f"{self.command} {path}")
            if found:
                writes = self.command not in ("GET", "HEAD") and "/objects/" not in path
                if writes and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    self._answer({"error": "no such token"}, 401)
                else:
                    getattr(self, act)(body, **found.groupdict())
                return
        self._answer({"error": f"no {self.command} {path}"}, 404)

    do_GET = do_HEAD = do_POST = do_PUT = _handle

    def _create(self, body: bytes) -> None:
        asked = json.loads(body)
        name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
        if name in self.hub.branches:
            self._answer({"url": f"{self.hub.url}/{name}", "error": "it is there"}, 409)
            return
        self.hub.commit(name, "main", {})
        self.hub.private[name] = asked.get("private", False) or asked.get("visibility") == "private"
        self._answer({"url": f"{self.hub.url}/{name}", "name": name})

    def _branch(self, body: bytes, name: str, branch: str) -> None:
        self.hub.branches[name].setdefault(branch, self.hub.branches[name]["main"])
        self._answer({})

    def _validate(self, body: bytes) -> None:
        content = json.loads(body)["content"]
        self._answer({"errors": [] if content.startswith("---\n") else [{"message": "no metadata"}], "warnings": []})

    def _preupload(self, body: bytes, name: str, branch: str) -> None:
        files = [file["path"] for file in json.loads(body)["files"]]
        modes = {path: "lfs" if path.endswith(".safetensors") else "regular" for path in files}
        self._answer({"files": [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]})

    def _batch(self, body: bytes, name: str) -> None:
        found = []
        for one in json.loads(body)["objects"]:
            upload = {"upload": {"href": f"{self.hub.url}/objects/{one['oid']}"}}
            found.append(one if one["oid"] in self.hub.objects else {**one, "actions": upload})
        self._answer({"transfer": "basic", "objects": found})

    def _put(self, body: bytes, oid: str) -> None:
        self.hub.objects[oid] = body
        self._answer({})

    def _commit(self, body: bytes, name: str, branch: str) -> None:
        files = dict(self.hub.files(name, branch))
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        mark = self.hub.commit(name, branch, files)
        self._answer({"commitUrl": f"{self.hub.url}/{name}/commit/{mark}", "commitOid": mark, "success": True})

    def _mark(self, name: str, revision: str) -> str | None:
        known = self.hub.branches.get(name, {})
        return known.get(revision, revision if revision in self.hub.commits else None)

    def _info(self, body: bytes, name: str, revision: str = "main") -> None:
        mark = self._mark(name, revision)
        if mark is None:
            why = "RevisionNotFound" if name in self.hub.branches else "RepoNotFound"
            self._answer({"error": "not found"}, 404, X_Error_Code=why)
        else:
            siblings = [{"rfilename": path} for path in self.hub.commits[mark]]
            self._answer({"id": name, "modelId": name, "sha": mark, "siblings": siblings})

    def _tree(self, body: bytes, name: str, revision: str) -> None:
        files = self.hub.commits[self._mark(name, revision) or ""]
        self._answer([{"type": "file", "path": p, "size": len(c), "oid": _oid(c)} for p, c in files.items()])

    def _file(self, body: bytes, name: str, revision: str, path: str) -> None:
        mark = self._mark(name, revision)
        content = self.hub.commits.get(mark or "", {}).get(path)
        if content is None:
            self._answer({"error": "not found"}, 404, X_Error_Code="EntryNotFound")
        else:
            self._answer(content, ETag=f'"{_oid(content)}"', X_Repo_Commit=mark or "")


def _oid(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


NAME = r"(?P<name>[\w.-]+/[\w.-]+)"
ROUTES = (
    (r"POST /api/repos/create", "_create"),
    (r"POST /api/validate-yaml", "_validate"),
    (rf"POST /api/models/{NAME}/branch/(?P<branch>[\w.-]+)", "_branch"),
    (rf"POST /api/models/{NAME}/preupload/(?P<branch>[\w.-]+)", "_preupload"),
    (rf"POST /api/models/{NAME}/commit/(?P<branch>[\w.-]+)", "_commit"),
    (rf"POST /{NAME}\.git/info/lfs/objects/batch", "_batch"),
    (r"PUT /objects/(?P<oid>\w+)", "_put"),
    (rf"GET /api/models/{NAME}", "_info"),
    (rf"GET /api/models/{NAME}/revision/(?P<revision>[\w.-]+)", "_info"),
    (rf"GET /api/models/{NAME}/tree/(?P<revision>[\w.-]+)", "_tree"),
    (rf"(?:GET|HEAD) /{NAME}/resolve/(?P<revision>[\w.-]+)/(?P<path>.+)", "_file"),
)
