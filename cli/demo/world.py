"""The demo's world, in a process of its own: a card company, a code host, a model, and a ledger of what they did.

    python -m runjournal.cli.demo.world FOLDER

Its first line of output says where it listens. A request is a line of JSON, {what, key, args}, and so is the answer.
Each effect is appended to the ledger, FOLDER/world.jsonl, and on the disk before anybody is told of it; then it passes
the gate, and only then the answer goes out. A charge is made once for its key, as payment providers do it. A pull
request has no key: whoever asks for it twice has two.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import sys
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from .gate import pause, tell

LEDGER: Final = "world.jsonl"
KEYED: Final = ("charge_card",)
_TOTAL: Final = re.compile(r"Total: (\d+)\.(\d\d)")
_USD_PER_TOKEN: Final = {"input": Decimal("0.000003"), "output": Decimal("0.000015")}
Entry = dict[str, Any]


# What its clients and its readers call.


def request(address: str, what: str, args: dict[str, Any], key: str = "") -> Any:
    """Ask the world for something; return its answer. Raises ConnectionError if it is cut off."""
    with _connected(address) as connection, connection.makefile("rwb") as stream:
        stream.write(json.dumps({"what": what, "key": key, "args": args}).encode() + b"\n")
        stream.flush()
        answer = stream.readline()
    if not answer:
        raise ConnectionError("the world hung up")
    return json.loads(answer)


def _connected(address: str) -> socket.socket:
    if address.startswith("/"):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address)
        except OSError:
            connection.close()
            raise
        return connection
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


def ledger(folder: Path) -> list[Entry]:
    """Return what the world did, in order: {line, what, key, args, result}, and `usd` of what it charges itself."""
    path = folder / LEDGER
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


# The process.


class DemoWorld:
    """Does what it is asked for, and writes it down first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries = ledger(folder)

    def answer(self, what: str, key: str, args: dict[str, Any]) -> Any:
        """Answer one request: with its effect, or with that of its key."""
        if (done := self.done(what, key)) is not None:
            return done["result"]
        number = sum(entry["what"] == what for entry in self.entries) + 1
        entry: Entry = {"line": len(self.entries) + 1, "what": what, "key": key, "args": args}
        match what:
            case "charge_card":
                entry["result"] = {"charge": f"ch_{number}", "cents": args["cents"]}
            case "open_pull_request":
                entry["result"] = {"number": 100 + number}
            case _:
                entry["result"], entry["usd"] = _model(args["request"]["prompt"])
        self.write(entry)
        return entry["result"]

    def done(self, what: str, key: str) -> Entry | None:
        """Return what was done for a key."""
        same = (entry for entry in self.entries if (entry["what"], entry["key"]) == (what, key))
        return next(same, None) if what in KEYED else None

    def write(self, entry: Entry) -> None:
        """Write a line into the ledger, then pass the gate."""
        self.entries.append(entry)
        descriptor = os.open(self.folder / LEDGER, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, json.dumps(entry).encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        pause(f"effect {entry['what']} {entry['line']}")

    def serve(self) -> None:
        """Answer requests, one after another, until nobody holds the gate any more."""
        listener, address = _listen(self.folder)
        tell(address)
        with listener:
            while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
                connection, _ = listener.accept()
                with connection, connection.makefile("rb") as stream:
                    if asked := stream.readline():
                        found = self.answer(**json.loads(asked))
                        with suppress(OSError):  # whoever asked was killed
                            connection.sendall(json.dumps(found).encode() + b"\n")


def _listen(folder: Path) -> tuple[socket.socket, str]:
    """A socket in the folder; on the loopback, if its path is too long for one."""
    path = str((folder / "world.sock").absolute())
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(path)
    except OSError:
        listener.close()
        listener = socket.create_server(("127.0.0.1", 0))
        path = f"127.0.0.1:{listener.getsockname()[1]}"
    listener.listen()
    return listener, path


def _model(prompt: str) -> tuple[dict[str, Any], str]:
    """Play a model by a script: it finds the total of an invoice. Return its answer, and its price."""
    found = _TOTAL.search(prompt)
    text = f"The total is {found[1]}.{found[2]} EUR." if found else "All of them are paid and booked."
    usage = {"input": 1_200 + len(prompt), "output": 40 + len(text)}
    answer: dict[str, Any] = {"text": text, "cents": int(found[1] + found[2]) if found else 0}
    answer["usage"] = {"input_tokens": usage["input"], "output_tokens": usage["output"]}
    price = str(sum(_USD_PER_TOKEN[name] * count for name, count in usage.items()))
    answer["cost"] = {"amount": price, "currency": "USD"}
    return answer, price


if __name__ == "__main__":
    DemoWorld(Path(sys.argv[1])).serve()
