"""The crash layers, a little of each, and what each has to notice; `make crash-report` runs them whole."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from layers import again, errors, interrupts, kills, power, races, report, states, tampering, workloads
from layers.__main__ import CONTROLS, Layer, Part, joined, merged, parts
from layers.disk import Change

SMALL = {
    "kills": partial(kills.kills, "1", 12),
    "states": partial(states.states, "1", 300),
    "tampering": partial(tampering.tamperings, "1", 1),
    "flips": partial(tampering.flips, "1", 40),
    "deliveries": partial(races.deliveries, "1", 4),
    "fences": partial(races.fences, "1", 3),
    "clocks": partial(races.clocks, "1", 3),
    "repeats": partial(races.repeats, "1", 4),
    "forks": partial(races.forks, "1", 2),
    "recoveries": partial(again.recoveries, "1", 449, 12, 17),
    "interrupts": partial(interrupts.interrupts, "1", 3),
    "power": partial(power.power, "1", 3),
    "errors": partial(errors.errors, "1", 449, 5),
}


def _few(layer: str, harm: str) -> list[pytest.MarkDecorator]:
    return [] if (layer, harm) == ("L4", "synchronous=OFF") else [pytest.mark.crash]


@pytest.mark.parametrize("name", SMALL)
def test_a_little_of_a_layer(name: str) -> None:
    """No promise is broken."""
    entry = SMALL[name]()
    assert (0, []) == (entry.violations, entry.first)
    assert entry.n or entry.skipped


@pytest.mark.parametrize(
    ("run", "n", "harm"),
    [pytest.param(run, n, harm, id=f"{layer} {harm}", marks=_few(layer, harm)) for layer, run, n, harm in CONTROLS],
)
def test_broken_promises_are_noticed(run: Layer, n: int, harm: str) -> None:
    """Each promise that is broken on purpose is noticed by the layer that looks after it."""
    (entry,) = Part("", run, ("1", n), harm).found()
    assert entry.skipped or entry.violations


def test_states_of_a_recording(tmp_path: Path) -> None:
    """The last state, with all that was pending, is what is there; and nothing was durable before it was synced."""
    recording = states.record(tmp_path, partial(workloads.appends, tmp_path / "runs.db", "1", count=4))
    last = list(states.moments(recording))[-1]
    images = states.applied(last.sure, last.pending)
    assert images[""] == (tmp_path / "runs.db").read_bytes()
    first = next(place for place, each in enumerate(recording.made) if isinstance(each, Change) and each.what == "sync")
    assert {} == next(each.sure for each in states.moments(recording) if each.done == first)


def test_a_rollback_journal_cannot_come_back(tmp_path: Path) -> None:
    """While a store is made, the folder is synced when its rollback journal goes: it would undo what comes later."""
    recording = states.record(tmp_path, partial(workloads.appends, tmp_path / "runs.db", "1", count=1))
    gone = [
        each for each in recording.made if isinstance(each, Change) and (each.what, each.file) == ("delete", "-journal")
    ]
    assert gone
    assert all(each.at_once for each in gone)


def test_parts_are_put_together() -> None:
    """Parts of a layer come together as one entry, with all that they counted and the first that was wrong."""
    one, other = report.Entry("L1", "x", "7.0"), report.Entry("L1", "x", "7.1")
    one.add("a", [])
    other.add("b", ["wrong"])
    other.count("c", 2)
    (both,) = merged([one, other])
    assert ("7", 2, 1, {"c": 2}, ["b: wrong"]) == (both.seed, both.n, both.violations, both.counts, both.first)


def test_layers_can_be_run_one_after_another(tmp_path: Path) -> None:
    """A report keeps what it has of other layers, unless it is of another commit."""
    path = tmp_path / "report.json"
    first = {"command": "x", "commit": "c", "seconds": 1, "layers": [{"layer": "L4", "n": 1}], "controls": []}
    other = first | {"layers": [{"layer": "L1", "n": 2}], "seconds": 3}
    path.write_text(json.dumps(first))
    both = joined(path, dict(other), "L1")
    assert (4, ["L1", "L4"]) == (both["seconds"], [each["layer"] for each in both["layers"]])
    assert ["L1"] == [each["layer"] for each in joined(path, dict(other) | {"commit": "d"}, "L1")["layers"]]
    assert ["L1"] == [each["layer"] for each in joined(path, dict(other), None)["layers"]]


def test_all_of_it() -> None:
    """At scale 1 the parts add up to what the guarantees cite."""
    sizes: dict[str, int] = {}
    for part in parts("7", 1.0):
        if len(part.args) == 2:
            name = getattr(part.run, "__name__", "")
            sizes[name] = sizes.get(name, 0) + part.args[1]
    assert {
        "power": 2000, "states": 500_000, "kills": 10_000, "tamperings": 1000, "flips": 100_000, "appends": 1000,
        "deliveries": 1000, "fences": 1000, "clocks": 1000, "repeats": 1000, "forks": 1000, "interrupts": 1000,
        "kill": 600, "error": 400,
    } == sizes  # fmt: skip
