"""`open_store`: a store by its URL. Each store is loaded only when it is asked for, with its driver."""

from __future__ import annotations

from .clock import Clock
from .codec import check_store_id
from .errors import InvalidArgument
from .store import Store


def open_store(
    url: str, *, clock: Clock, create: bool = True, allow_unsafe: bool = False, store_id: str | None = None
) -> Store:
    """Open a store by its URL: `memory:`, or the path of a SQLite file, with or without `sqlite:` before it.

    `create=False` refuses to make a new file. `allow_unsafe` overrides the refusal of network file systems, by name
    only. A new store gets `store_id`, by default a random one; one that is there has to have it. Raises
    StoreUnavailable, NotAStore, NewerSchema, UnsafePlace, StoreIdDiffers, InvalidArgument.
    """
    if store_id is not None:
        check_store_id(store_id)
    if url == "memory:":
        from .memory import MemoryStore

        return MemoryStore(clock=clock, store_id=store_id)
    scheme = url.split(":", 1)[0] if ":" in url[:20] else ""
    if scheme in ("postgresql", "postgres"):
        raise InvalidArgument("a PostgreSQL store isn't part of this version; use a path or 'memory:'")
    from .sqlite import SQLiteStore

    path = url.removeprefix("sqlite:").removeprefix("//")
    return SQLiteStore(path, clock=clock, create=create, allow_unsafe=allow_unsafe, store_id=store_id)
