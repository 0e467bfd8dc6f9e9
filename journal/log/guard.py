"""Locks that no interrupt leaves locked.

A `with` may be interrupted between the end of its body and its exit, and a `finally` in its middle. So whoever holds a
lock is inside a `try` whose `except` lets go of it again: a lock that may be entered twice by one thread tells that
thread, when it is let go of once too often, and nobody else's is ever let go of.

A `try` within a `try` or a `with` of one function has a bytecode at its beginning that is in neither: what must not be
left there is in a function of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Lock
from typing import Protocol, TypeVar

T = TypeVar("T")


class ReentrantLock(AbstractContextManager[object], Protocol):
    """A `threading.RLock`."""

    def acquire(self) -> object:
        """Wait for it, and take it once."""
        ...

    def release(self) -> None:
        """Let go of it once. Raises RuntimeError in a thread that doesn't have it."""
        ...


def free(lock: ReentrantLock) -> None:
    """Let go of a lock as often as this thread has it, which may be never."""
    try:
        while True:
            lock.release()
    except RuntimeError:
        return


def take_again(lock: ReentrantLock) -> None:
    """Take a lock that this thread has let go of for a while; an interrupt while it waits comes when it has it."""
    try:
        lock.acquire()
    except BaseException:
        free(lock)
        lock.acquire()
        raise


def hold(lock: ReentrantLock, work: Callable[[], T]) -> T:
    """Do a piece of work under a lock that this thread doesn't have yet; an interrupt at any point lets go of it."""
    try:
        with lock:
            return work()
    except BaseException:
        free(lock)
        raise


class Signal:
    """Wake one thread that waits: a `threading.Event` that no interrupt breaks, and whose wait takes the call away.

    The standard library's own has a lock inside that an interrupt can leave locked, for whoever comes next.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake who waits, or who will wait next; a second call before that adds nothing."""
        try:
            self._lock.release()
        except RuntimeError:  # it is set already
            return

    def wait(self, timeout_s: float) -> bool:
        """Return whether somebody has called within so many seconds."""
        return self._lock.acquire(timeout=timeout_s)
