"""Mistakes of a caller in Python: the error says what was expected, what came and where."""

import pytest

import runjournal
from runjournal import Event, Journal
from runjournal.log import events as e
from runjournal.log.errors import InvalidArgument, WrongExpectation


@pytest.fixture
def journal():
    with Journal.open("memory:") as opened:
        opened.append("r", [e.RunQueued(kind="demo", input=None), e.NoteAdded("one")], expect=0)
        yield opened


def test_one_event_is_no_list(journal):
    """An event in place of a list of events is refused, and the error says how it is written."""
    with pytest.raises(InvalidArgument, match=r"expected a list of events, got one NoteAdded: put it in \[ \]"):
        journal.append("r", e.NoteAdded("two"))


def test_a_class_is_no_event(journal):
    """A class in place of an event is refused, and the error says how one is made."""
    with pytest.raises(InvalidArgument, match=r"expected an event, got the class NoteAdded: make one, NoteAdded\("):
        journal.append("r", [e.NoteAdded])


def test_one_status(journal):
    """`runs` takes one status as well as several, and names those that there are."""
    assert ["r"] == [head.run_id for head in journal.runs(status="queued")]
    assert [] == list(journal.runs(status="failed"))
    with pytest.raises(InvalidArgument, match=r"expected one of queued, .*, got 'qeued'"):
        list(journal.runs(status="qeued"))


class Count:
    """Counts events."""

    NAME, VERSION = "count", 1

    def __init__(self):
        self.count = 0

    @classmethod
    def initial(cls):
        return cls()

    def apply(self, record):
        self.count += 1

    def dump(self):
        return self.count

    @classmethod
    def load(cls, data):
        made = cls()
        made.count = data
        return made


@pytest.mark.parametrize(
    ("name", "wrong", "expected"),
    [
        ("NAME", None, 'expected NAME, as in `NAME = "sent"`, got None'),
        ("VERSION", None, "expected VERSION, as in `VERSION = 1`, got None"),
        ("VERSION", "1", "expected VERSION, as in `VERSION = 1`, got '1'"),
    ],
)
@pytest.mark.parametrize("method", ["fold", "checkpoint"])
def test_a_projection_says_what_it_is(journal, method, name, wrong, expected):
    """A projection without a NAME or a VERSION is refused before anything is folded."""
    kind = type("Wrong", (Count,), {name: wrong})
    words = (kind, "r") if method == "fold" else ("r", kind)
    with pytest.raises(InvalidArgument) as caught:
        getattr(journal, method)(*words)
    assert f"projection Wrong: {expected}" == str(caught.value)


def test_an_error_in_a_fold_says_where(journal):
    """What `apply` raises comes out as it is, with a note of the run, the seq and the type."""

    class Boom(Count):
        def apply(self, record):
            if record.seq == 2:
                raise KeyError("cents")

    with pytest.raises(KeyError) as caught:
        journal.fold(Boom, "r")
    assert ["while folding r@2 note.added"] == caught.value.__notes__


def test_the_refusal_that_writers_catch_is_in_front():
    """What a writer must catch is exported."""
    assert WrongExpectation is runjournal.WrongExpectation
    assert Event is runjournal.Event
