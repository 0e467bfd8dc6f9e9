"""The demo's world, with a fault.

    python demo_world_gone_wrong.py FAULT FOLDER

FAULT: twice, it does everything twice; forgets, it knows no key again; charges more, than it was asked for; dies, at
its first pull request.
"""

import json
import os
import sys
from pathlib import Path

from runjournal.cli.demo.world import LEDGER, DemoWorld, Entry

FAULT, FOLDER = sys.argv[1:]


class Wrong(DemoWorld):
    def done(self, what: str, key: str) -> Entry | None:
        return None if FAULT == "forgets" else super().done(what, key)

    def write(self, entry: Entry) -> None:
        if FAULT == "dies" and entry["what"] == "open_pull_request":
            os._exit(1)
        if FAULT == "charges more" and entry["what"] == "charge_card":
            entry["args"] = {**entry["args"], "cents": entry["args"]["cents"] + 1}
        super().write(entry)
        if FAULT == "twice":
            with (self.folder / LEDGER).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")


Wrong(Path(FOLDER)).serve()
