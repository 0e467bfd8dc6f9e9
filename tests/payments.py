"""A payment service over HTTP: it charges once for an idempotency key, as long as it remembers that, and checks it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Payments:
    """What the service knows: `charges` are those that were made, `seen` the receipts by key. `now` is its clock."""

    def __init__(self, now: Callable[[], float], ttl_s: float) -> None:
        self.now = now
        self.ttl_s = ttl_s
        self.charges: list[dict[str, Any]] = []
        self.seen: dict[str, tuple[float, dict[str, Any], dict[str, Any]]] = {}
        self.lock = threading.Lock()
        self.charged = threading.Event()
        self.port = 0

    def post(self, key: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Charge, or return the receipt of a key that is remembered; 422 for one that was used for something else."""
        with self.lock:
            until, before, receipt = self.seen.get(key, (-1.0, {}, {}))
            if self.now() < until:
                return (200, receipt) if asked == before else (422, {"error": "the key was used for something else"})
            self.charges.append(asked)
            self.charged.set()
            receipt = {"charge": len(self.charges)} | asked
            self.seen[key] = (self.now() + self.ttl_s, asked, receipt)
            return 201, receipt


@contextmanager
def serving(payments: Payments) -> Iterator[int]:
    """Serve at a port of this machine; return which."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = payments.post(self.headers["Idempotency-Key"], asked)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *about: Any) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def charge_at(port: int, key: str, asked: dict[str, Any], sent: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Charge; `sent` is called between the request and its answer. Raises ValueError if the service refuses."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", "/charges", json.dumps(asked), {"Idempotency-Key": key})
        sent()
        answer = connection.getresponse()
        told: dict[str, Any] = json.load(answer)
        if answer.status not in (200, 201):
            raise ValueError(f"{answer.status}: {told['error']}")
        return told
    finally:
        connection.close()
