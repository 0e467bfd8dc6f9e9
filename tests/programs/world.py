"""The outside world, in a process that outlives every agent: a ledger of effects, on a unix socket.

    python world.py SOCKET LEDGER

One connection is one request, a line of JSON, served one after the other in the order of their connects. `act` appends
`tool key` to the ledger and syncs it before it answers; with `once`, only if that key isn't there. `ping` does nothing.
`strike` says which of the next acts and pings strikes its sender with which signal, before or after it is served; one
that was killed before is not served. Ends with its standard input.
"""

import json
import os
import select
import signal
import socket
import struct
import sys
from typing import Any

PATH, LEDGER = sys.argv[1:]


class World:
    def __init__(self) -> None:
        self.ledger = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.seen: set[str] = set()
        self.strike: list[Any] = []

    def serve(self, request: dict[str, Any], sender: int) -> dict[str, Any]:
        match request["do"]:
            case "strike":
                self.strike = [request["at"], request["when"], signal.Signals[request["signal"]]]
                return {}
            case "happened":
                return {"happened": request["key"] in self.seen}
        struck = self.strikes()
        if struck == "before":
            os.kill(sender, self.strike[2])
            if self.strike[2] == signal.SIGKILL:
                return {}
        if request["do"] == "act":
            self.act(request)
        if struck == "after":
            os.kill(sender, self.strike[2])
        return {}

    def strikes(self) -> str:
        if not self.strike:
            return ""
        self.strike[0] -= 1
        return self.strike[1] if self.strike[0] == 0 else ""

    def act(self, request: dict[str, Any]) -> None:
        if not (request["once"] and request["key"] in self.seen):
            os.write(self.ledger, f"{request['tool']} {request['key']}\n".encode())
            os.fsync(self.ledger)
        self.seen.add(request["key"])


def main() -> None:
    world, server = World(), socket.socket(socket.AF_UNIX)
    server.bind(PATH)
    server.listen(64)
    print("ready", flush=True)  # noqa: T201 - its supervisor waits for it
    while server in select.select([server, sys.stdin], [], [])[0]:
        connection, _ = server.accept()
        with connection:
            sender = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            line = b""
            while not line.endswith(b"\n") and (part := connection.recv(65536)):
                line += part
            if line.endswith(b"\n"):  # else it died while it asked
                answer = world.serve(json.loads(line), sender)
                try:
                    connection.sendall(json.dumps(answer).encode() + b"\n")
                except OSError:
                    continue  # it died while it waited


main()
