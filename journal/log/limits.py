"""Every bound, in one place; the unit is the last word of the name.

A bound that is reached is an error that names it (`TooLarge`, `StoreBusy`), never a silent cut, unless its line says
otherwise.
"""

from __future__ import annotations

from typing import Final

# Values.
json_depth_max: Final = 64
"""How deep a stored value may nest."""
inline_value_bytes_max: Final = 64 * 1024
"""A field over this is kept as a blob, out of line."""
event_data_bytes_max: Final = 1024 * 1024
"""The inline JSON of one event, after blobs were taken out."""
blob_bytes_max: Final = 256 * 1024 * 1024
"""One value held as a blob."""
run_id_chars_max: Final = 128
name_chars_max: Final = 512
"""Names, ids and keys that people and programs give: steps, tools, memory keys, calls."""
int_min: Final = -(2**63)
int_max: Final = 2**63 - 1

# Appending and reading.
append_batch_events_max: Final = 10_000
"""Events in one append; the importer alone writes a whole file in one batch, in chunks of this."""
read_page_events_max: Final = 512
"""Events read at a time; no read transaction stays open between two pages."""
heads_page_max: Final = 200
"""Rows of a listing read at a time."""
transaction_s_max: Final = 2.0
"""How long the body of a transactional tool may take: less than busy_wait_s, for it holds the write lock."""
busy_wait_s: Final = 10.0
"""How long a writer waits for another process's write lock before it is `StoreBusy`."""
follow_poll_s: Final = 0.05
"""How often a follower looks for a change."""
wal_size_limit_bytes: Final = 64 * 1024 * 1024
"""The WAL is kept at this size: a WAL that must grow makes a durable commit twice as slow."""
wal_autocheckpoint_pages: Final = 1000

# Folds.
step_calls_max: Final = 10_000
"""Calls that the state of a run holds: of the open step, of failed ones, and those of which nobody knows."""
steps_recent_max: Final = 64
"""Ids of completed steps that the state keeps; the rest is in the table step_ends."""
memory_bytes_max: Final = 4 * 1024 * 1024
"""The working memory of a run, as JSON, values over `inline_value_bytes_max` by reference."""
plan_tasks_max: Final = 10_000
inbox_signals_max: Final = 10_000
"""Signals that a run holds untaken."""
models_max: Final = 256
"""Models with a line of their own in the cost ledger; the rest share one."""
answers_kept_max: Final = 64
"""Answers to questions that no step asked."""
children_kept_max: Final = 1_000
"""Children whose status the state keeps; those that run are always among them."""
tags_max: Final = 64
checkpoint_warn_bytes: Final = 50 * 1024
"""A checkpoint over this is written, with a warning."""
checkpoint_every_events: Final = 256
"""A checkpoint is written after this many events, and at each event that ends a step or the run."""
checkpoint_stretch_events: Final = 16_384
"""Beside the newest few, the last checkpoint of each such stretch of a run is kept: for replays of its middle."""
states_cached_max: Final = 64
"""Folded runs that a Journal keeps in memory, beside those that it owns."""

# Leases.
lease_s: Final = 60.0
heartbeat_s: Final = 10.0
clock_skew_s: Final = 1.0
"""Wall clocks going back by less than this are not reported by the audit."""
