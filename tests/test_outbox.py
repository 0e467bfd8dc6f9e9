"""The outbox: what a run has written down is delivered by a relay, each key once for who receives it.

Rules: engine.md E61 to E65.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runjournal import AsyncJournal, Journal, Retry, tool
from runjournal.log import events as e
from runjournal.log import owner
from runjournal.log.clock import FakeClock
from runjournal.log.errors import AppendRefused, InvalidArgument
from runjournal.looking.audit import audit_store
from runjournal.outbox import OutboxEntry, Relay

RELAYED = Path(__file__).parent / "programs" / "relayed.py"


class Receiver:
    """Does a thing once for a key, if it isn't `down`; `heard` is all that came."""

    def __init__(self) -> None:
        self.done: dict[str, str] = {}
        self.heard: list[str] = []
        self.down = 0
        self.error: BaseException = ConnectionError("no answer")

    def receive(self, what: str, key: str) -> str:
        self.heard.append(what)
        if self.down:
            self.down -= 1
            raise self.error
        return self.done.setdefault(key, f"{what} done")


receiver = Receiver()


@tool(policy="outbox", key_ttl_s=3600)
def mail(to: str, *, idempotency_key: str = "") -> str:
    return receiver.receive(to, idempotency_key)


def looked_up(args: Any, key: str) -> Any:
    return ("happened", "looked up") if key in receiver.done else ("did_not_happen", None)


@tool(policy="outbox", key_ttl_s=3600, reconcile=looked_up)
def parcel(to: str, *, idempotency_key: str = "") -> str:
    return receiver.receive(to, idempotency_key)


@pytest.fixture(autouse=True)
def _anew() -> None:
    receiver.__init__()  # type: ignore[misc]  # the tools hold it


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def journal(clock: FakeClock) -> Journal:
    return Journal.open("memory:", clock=clock)


def mails(*names: str, then: Any = None) -> Any:
    def agent(run: Any) -> list[Any]:
        with run.step("a"):
            found = [mail(each) for each in names]
            if then is not None:
                then()
        return found

    return agent


def events(journal: Journal, kind: str) -> list[Any]:
    return [each.event for each in journal.events("r", types=[kind])]


def outcomes(journal: Journal, **how: Any) -> list[str]:
    return [each.outcome for each in journal.relay(**how)]


def test_a_call_is_written_down_and_delivered_later(journal: Journal) -> None:
    """The agent gets the key, and nothing is sent; the relay sends, marks, and has nothing left."""
    (key,) = journal.run(mails("ada"), run_id="r", kind="a")
    assert [] == receiver.heard
    (done,) = journal.relay()
    assert ("r", key, "mail", "delivered") == done[:4]
    assert {key: "ada done"} == receiver.done
    assert ([], []) == (journal.relay(), list(journal.store.index_rows("unknowns")))
    assert "ada done" == events(journal, "tool.completed")[0].result
    assert [] == [each for each in audit_store(journal.store) if each.severity != "info"]


def test_equal_calls_are_entries_of_their_own(journal: Journal) -> None:
    """In one step and in another one: none is taken for the other though none is delivered yet."""

    def agent(run: Any) -> None:
        for step in ("a", "b"):
            with run.step(step):
                mail("ada")
                mail("ada")

    journal.run(agent, run_id="r")
    assert ["delivered"] * 4 == outcomes(journal)
    assert 4 == len(receiver.done)


def test_under_asyncio_a_call_is_queued_too(journal: Journal) -> None:
    """The tool is awaited like any other, and returns the key."""

    async def agent(run: Any) -> Any:
        async with run.step("a"):
            return await run.call(mail, "ada")

    key = asyncio.run(AsyncJournal(journal.store).run_async(agent, run_id="r"))
    assert [key] == [each.key for each in journal.relay()] == list(receiver.done)


def test_a_crash_of_the_agent_queues_nothing_twice(journal: Journal) -> None:
    """The step that is entered again finds its entries; only once it is complete they are delivered."""
    dies = [KeyboardInterrupt()]

    def die() -> None:
        if dies:
            assert [] == journal.relay()
            raise dies.pop()

    with pytest.raises(KeyboardInterrupt):
        journal.run(mails("ada", "bob", then=die), run_id="r", kind="a")
    assert [] == journal.relay()
    journal.run(mails("ada", "bob", then=die), run_id="r", kind="a")
    assert ["ada", "bob"] == [each.args["to"] for each in events(journal, "tool.started")]
    assert ["delivered"] * 2 == outcomes(journal)


def test_what_a_failed_step_has_queued_is_never_delivered(journal: Journal) -> None:
    """Unless a later attempt asks for it again; it has no row in the table of unknown calls meanwhile."""
    fails = [ValueError("no")]

    def agent(run: Any) -> None:
        for names in (("ada", "bob"), ("bob",)):
            try:
                with run.step("a"):
                    [mail(each) for each in names]
                    if fails:
                        raise fails.pop()  # noqa: TRY301 - it is to leave the step
                return
            except Exception:  # noqa: BLE001 - the agent goes another way
                assert [] == list(journal.store.index_rows("unknowns"))

    journal.run(agent, run_id="r")
    assert ["delivered"] == outcomes(journal)
    assert ["bob"] == receiver.heard


def test_entries_are_tried_again_in_order(journal: Journal, clock: FakeClock) -> None:
    """A failure has the entry and those behind it wait, and not those of another run."""
    journal.run(mails("ada", "bob"), run_id="r", kind="a")
    journal.run(mails("cyd"), run_id="s", kind="a")
    receiver.down = 1
    first = journal.relay()
    assert [("r", "failed"), ("s", "delivered")] == [(each.run_id, each.outcome) for each in first]
    assert "ConnectionError: no answer" == first[0].error
    assert (first[0].retry_at or "") > next(iter(journal.events("r"))).at
    clock.sleep(600)
    assert ["delivered"] * 2 == outcomes(journal)
    assert ["ada", "cyd", "ada", "bob"] == receiver.heard


def test_an_entry_that_fails_too_often_is_parked(journal: Journal, clock: FakeClock) -> None:
    """Those behind it are delivered; a person sees it, and says that it is to be tried again."""
    journal.run(mails("ada", "bob"), run_id="r", kind="a")
    receiver.down = 2
    assert ["failed"] == outcomes(journal, retry=Retry(attempts=2))
    clock.sleep(600)
    assert ["parked", "delivered"] == outcomes(journal, retry=Retry(attempts=2))
    (asked,) = journal.questions()
    assert ("call", "mail", "no relay could deliver it, and none tries any more") == (
        asked.kind,
        asked.action,
        asked.reason,
    )
    assert ["call_unresolved"] == [each.code for each in audit_store(journal.store) if each.severity == "warning"]
    assert [] == journal.relay()
    journal.resolve("r", asked.id, "retry")
    assert [] == journal.questions()
    assert ["delivered"] == outcomes(journal)
    assert ["bob done", "ada done"] == list(receiver.done.values())


@pytest.mark.parametrize("word", ["happened", "did_not_happen"])
def test_a_parked_entry_is_dropped_by_a_word(journal: Journal, word: Any) -> None:
    """It happened by hand, or it isn't to happen: nobody is asked any more, and nothing is sent."""
    journal.run(mails("ada"), run_id="r", kind="a")
    receiver.down = 1
    assert ["parked"] == outcomes(journal, retry=Retry(attempts=1))
    journal.resolve("r", journal.questions()[0].id, word)
    assert ([], [], []) == (journal.questions(), journal.relay(), list(journal.store.index_rows("unknowns")))
    assert ["ada"] == receiver.heard


def dying(journal: Journal, **claim: Any) -> str:
    """Let a relay deliver the next entry and die before it marks that; return its key."""
    start = events(journal, "tool.started")[0]
    key: str = start.call_id
    gone = owner.here()._replace(pid=2**22 + 1, started="1")
    given = {"claim": "other", "until": "2026-01-02T04:00:00.000000Z", "process": gone._asdict()} | claim
    journal.append("r", [e.ToolDispatched(key, key_expires_at="2026-01-02T04:04:05.000000Z", **given)])
    receiver.receive(start.args["to"], key)
    return key


def test_a_relay_that_died_before_its_mark_is_followed_under_the_same_key(journal: Journal) -> None:
    """It is delivered again; the receiver has done it once."""
    journal.run(mails("ada"), run_id="r", kind="a")
    key = dying(journal)
    assert ["delivered"] == outcomes(journal)
    assert (["ada", "ada"], {key: "ada done"}) == (receiver.heard, receiver.done)


def test_an_entry_that_a_living_relay_has_is_left_alone(journal: Journal, clock: FakeClock) -> None:
    """Until its lease is over."""
    journal.run(mails("ada"), run_id="r", kind="a")
    dying(journal, process=owner.here()._asdict())
    assert [] == journal.relay()
    clock.sleep(3400)
    assert ["delivered"] == outcomes(journal)


def test_of_two_relays_at_once_one_delivers(journal: Journal) -> None:
    """One that looks while the other one delivers finds nothing to do."""
    journal.run(mails("ada", "bob"), run_id="r", kind="a")
    inside: list[Any] = []

    def deliver(entry: OutboxEntry) -> str:
        inside.append(journal.relay())
        return entry.tool

    assert ["delivered"] * 2 == outcomes(journal, deliver=deliver)
    assert [[], []] == inside


def test_a_relay_that_was_overtaken_looks_again(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its claim stands where it has read the log, or nowhere: what another one has claimed since is left alone."""
    journal.run(mails("ada"), run_id="r", kind="a")
    claimed = Relay._claimed

    def overtaken(relay: Relay, *about: Any) -> e.ToolDispatched:
        monkeypatch.undo()
        dying(journal, process=owner.here()._asdict())
        return claimed(relay, *about)

    monkeypatch.setattr(Relay, "_claimed", overtaken)
    assert [] == journal.relay()
    assert ["ada"] == receiver.heard


def test_after_the_life_of_its_key_an_entry_is_not_delivered_again_alone(journal: Journal, clock: FakeClock) -> None:
    """It may have been delivered, and the receiver may have forgotten the key: a person is asked."""
    journal.run(mails("ada"), run_id="r", kind="a")
    dying(journal)
    clock.sleep(3700)
    (done,) = journal.relay()
    assert ("parked", True) == (done.outcome, "its key may have been forgotten" in done.error)
    assert ["ada"] == receiver.heard
    journal.resolve("r", done.key, "retry")
    assert ["delivered"] == outcomes(journal)


def test_an_entry_that_was_never_sent_has_a_key_of_any_age(journal: Journal, clock: FakeClock) -> None:
    """The life of a key is counted from the first delivery, and a relay may have been away for a month."""
    journal.run(mails("ada"), run_id="r", kind="a")
    clock.sleep(30 * 24 * 3600)
    receiver.down = 1
    assert ["failed"] == outcomes(journal)
    clock.sleep(600)
    assert ["delivered"] == outcomes(journal)


def test_a_hook_says_whether_an_interrupted_delivery_has_happened(journal: Journal, clock: FakeClock) -> None:
    """Then nothing is sent again, however old the key is."""

    def agent(run: Any) -> None:
        with run.step("a"):
            parcel("ada")

    journal.run(agent, run_id="r")
    dying(journal)
    clock.sleep(10_000)
    assert ["delivered"] == outcomes(journal)
    assert ["ada"] == receiver.heard
    assert "looked up" == events(journal, "tool.completed")[0].result


def test_an_interrupt_lets_the_entry_go(journal: Journal, clock: FakeClock) -> None:
    """Whoever interrupts the relay needn't wait for its lease."""
    journal.run(mails("ada"), run_id="r", kind="a")
    receiver.down, receiver.error = 1, KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        journal.relay()
    clock.sleep(60)
    assert ["delivered"] == outcomes(journal)


def test_a_function_of_ones_own_delivers(journal: Journal) -> None:
    """It gets run, tool, arguments, key and how often that has failed."""
    (key,) = journal.run(mails("ada"), run_id="r", kind="a")
    entries: list[OutboxEntry] = []
    journal.relay(entries.append)
    ((run_id, found, name, args, tries),) = [(x.run_id, x.key, x.tool, x.args, x.tries) for x in entries]
    assert ("r", key, "mail", {"to": "ada"}, 0) == (run_id, found, name, args, tries)


def test_an_entry_whose_tool_is_not_here_is_left(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which module is missing."""
    journal.run(mails("ada"), run_id="r", kind="a")
    monkeypatch.setattr("runjournal.outbox.known", dict)
    (done,) = journal.relay()
    assert ("left", "no tool mail in this process: import the module that has it") == (done.outcome, done.error)


@pytest.mark.parametrize("link", ["retry", "restart"])
def test_a_run_that_goes_on_takes_its_outbox_along(journal: Journal, link: str) -> None:
    """What the old one has queued is delivered once, whoever asks for it again."""

    def agent(run: Any) -> None:
        run.do("a", mail, "ada")
        if fails:
            raise fails.pop()

    fails = [ValueError("no")]
    with pytest.raises(Exception, match="no"):
        journal.run(agent, run_id="r")
    again = getattr(journal, link)("r")
    assert ["delivered"] == outcomes(journal)
    journal.run(agent, run_id=again)
    assert ([], []) == (journal.relay(), journal.questions())
    assert ["ada"] == receiver.heard
    assert [] == [
        each for each in audit_store(journal.store) if each.severity in ("error", "warning") and each.run_id == again
    ]


def test_a_run_with_entries_is_not_purged(journal: Journal) -> None:
    """Before they are delivered, or a person has dropped them."""
    (key,) = journal.run(mails("ada"), run_id="r", kind="a")
    with pytest.raises(AppendRefused, match=key):
        journal.purge("r", reason="old")
    journal.resolve("r", key, "did_not_happen")
    journal.purge("r", reason="old")
    assert [] == journal.relay()


@pytest.mark.parametrize("function", [lambda to: None, lambda to, *, key: None], ids=["no key", "another name"])
def test_a_tool_of_the_outbox_takes_the_key(function: Any) -> None:
    """Without it, nobody could do a thing once."""
    with pytest.raises(InvalidArgument, match="takes a parameter `idempotency_key`"):
        tool(policy="outbox", name="x")(function)


@pytest.mark.parametrize("how", [{"lease_s": 0}, {"retry": 3}])
def test_what_a_relay_cannot_take(journal: Journal, how: Any) -> None:
    """It is refused before anything is looked at."""
    with pytest.raises(InvalidArgument, match=r"lease_s: expected more|retry: expected a Retry"):
        journal.relay(**how)


def killed(folder: Path, kills: int) -> None:
    out = subprocess.run(
        [sys.executable, RELAYED, folder, str(kills), "7"], check=False, capture_output=True, text=True, timeout=900
    )
    assert ("", 0) == (out.stderr, out.returncode)
    told = json.loads(out.stdout)
    assert kills <= told["kills"]
    assert (0, True, True, 0) == (told["pending"], told["once"], told["in_order"], told["overlaps"])
    assert told["again"] > 0


def test_a_relay_that_is_killed_delivers_each_key_once(tmp_path: Path) -> None:
    """Before and behind each commit, each delivery and each mark; some come again, none under two keys."""
    killed(tmp_path, 10)


@pytest.mark.crash
def test_a_relay_that_is_killed_200_times_delivers_each_key_once(tmp_path: Path) -> None:
    """The same, at length."""
    killed(tmp_path, 200)
