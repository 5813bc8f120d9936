"""A small model and data hub on the loopback interface, as far as the real client needs one."""

from __future__ import annotations

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

_INFO = re.compile(r"/api/(models|datasets)/(.+)/(?:revision|tree)/([0-9a-f]{40})")
_FILE = re.compile(r"(/datasets)?/(.+)/resolve/([0-9a-f]{40})/(.+)")


@dataclass
class Hub:
    """Repositories by (kind, name, commit), each a mapping of file names to bytes; what was asked; how to misbehave."""

    repositories: dict[tuple[str, str, str], dict[str, bytes]]
    token: str | None = None
    """Required of every request, where set."""
    breaks: dict[str, list[int]] = field(default_factory=dict)
    """File name → after how many bytes its next transfers break, one after the other."""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """(method, path, Range header) of each request."""
    address: str = ""

    def files(self, kind: str, name: str, commit: str) -> dict[str, bytes] | None:
        """The files of a repository, or None."""
        return self.repositories.get((kind, name, commit))


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """Serves the hub while the context lasts; `hub.address` is its endpoint."""

    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    served: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Says nothing; the hub keeps the requests."""

    def do_HEAD(self) -> None:
        self._answer(send_body=False)

    def do_GET(self) -> None:
        self._answer(send_body=True)

    def _answer(self, send_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.served.requests.append((self.command, path, self.headers.get("Range", "")))
        if self.served.token and self.headers.get("Authorization") != f"Bearer {self.served.token}":
            self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif found := _INFO.fullmatch(path):
            self._info(*found.groups())
        elif found := _FILE.fullmatch(path):
            self._file("datasets" if found[1] else "models", found[2], found[3], found[4], send_body)
        else:
            self._send(404, b"")

    def _info(self, kind: str, name: str, commit: str) -> None:
        files = self.served.files(kind, name, commit)
        if files is None:
            known = any(key[:2] == (kind, name) for key in self.served.repositories)
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound" if known else "RepoNotFound"})
        elif "/tree/" in self.path:
            entries = [{"type": "file", "path": f, "size": len(data), "oid": _etag(data)} for f, data in files.items()]
            self._send(200, json.dumps(entries).encode())
        else:
            siblings = [{"rfilename": file} for file in files]
            self._send(200, json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode())

    def _file(self, kind: str, name: str, commit: str, file: str, send_body: bool) -> None:
        data = (self.served.files(kind, name, commit) or {}).get(file)
        if data is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        part = data[start:]
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._send(206 if start else 200, part, headers, send_body=False)
        if send_body:
            self._body(part, self.served.breaks.get(file, []))

    def _body(self, data: bytes, breaks: list[int]) -> None:
        self.wfile.write(data[: breaks[0]] if breaks else data)
        if breaks:
            breaks.pop(0)
            self.close_connection = True

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, send_body: bool = True) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if send_body:
            self.wfile.write(body)


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
