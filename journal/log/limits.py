"""Every bound of the package, in one place; the unit is the last word of the name, before `_max` or `_min`.

A bound that is reached is an error that names it (`TooLarge`, `StoreBusy`), never a silent cut, unless its line says
otherwise. `runjournal config` shows them all, with the text that stands below each.
"""

from __future__ import annotations

from typing import Final

# Values.
json_depth_max: Final = 64
"""How deep the data of an event may nest, so that a value in it has one level less; a deeper one is `Unstorable`."""
inline_value_bytes_max: Final = 64 * 1024
"""A field over this is kept as a blob, out of line."""
event_data_bytes_max: Final = 1024 * 1024
"""The inline JSON of one event, after blobs were taken out."""
blob_bytes_max: Final = 256 * 1024 * 1024
"""One value held as a blob."""
row_int_max: Final = 2**53
"""A larger seq, epoch or process id in a row of `runs` is damage: the row is left out, and told of."""
store_id_bytes: Final = 8
"""Random bytes in the id of a new store."""
run_id_chars_max: Final = 128
"""The id of a run; a longer one is refused."""
name_chars_max: Final = 512
"""Names, ids and keys that people and programs choose: steps, tools, memory keys, calls; a longer one is refused."""
thread_look_s: Final = 1.0
"""Seconds between two looks of a waiting thread whether those that it waits for still live."""
scrub_tries_max: Final = 20
"""How often a scrub tries to empty the write-ahead log while readers keep it."""
scrub_wait_s: Final = 0.05
"""How long it waits in between, with no lock held."""
key_bytes: Final = 32
"""The key of a run that holds private values: two keys of AES-128, as AES-SIV takes them."""
hash_bytes: Final = 32
"""The hash of an event: a SHA-256."""
hashed_name_bytes_max: Final = 255
"""The id or type of an event whose length the hash can tell, in bytes; no event has a longer one."""
int_min: Final = -(2**63)
"""The smallest stored integer; a smaller one is `Unstorable`."""
int_max: Final = 2**63 - 1
"""The largest stored integer; a larger one is `Unstorable`. A count of tokens that passes it stays there."""

# Appending and reading.
append_batch_events_max: Final = 10_000
"""Events in one append."""
read_page_events_max: Final = 512
"""Events read at a time; no read transaction stays open between two pages."""
read_page_heads_max: Final = 200
"""Rows of a listing read at a time."""
group_appends_max: Final = 256
"""Appends of several threads or tasks that share a commit; those behind them wait for the next one."""
group_woken_max: Final = 16
"""Tasks that are told in one turn of their loop that their append is committed; the others hear in the next ones."""
group_gather_s: Final = 0.05
"""How long the first append of a loop waits at most for others that come in the next turns, to share a commit."""
committer_idle_s: Final = 1.0
"""How long the thread that commits for several others waits for another append; then it ends, until one comes."""
transaction_s_max: Final = 2.0
"""How long the body of a transactional tool may take: less than busy_wait_s, for it holds the write lock."""
overdue_look_steps: Final = 10_000
"""Steps of SQLite's machine, in a statement of a transactional tool, between two looks at `transaction_s_max`."""
busy_wait_s: Final = 10.0
"""How long a writer waits for another process's write lock before it is `StoreBusy`."""
lock_look_first_s: Final = 0.004
"""Between two looks of a writer whether another process has let go of the write lock, at first."""
lock_look_last_s: Final = 0.0003
"""The same once it has waited for lock_patience_s: it comes before those that have waited less."""
lock_patience_s: Final = 0.1
"""How long it takes until a waiting writer looks as often as it ever does."""
follow_poll_s: Final = 0.05
"""How often a follower looks for a change."""
wal_size_limit_bytes: Final = 64 * 1024 * 1024
"""The WAL is kept at this size: a WAL that must grow makes a durable commit twice as slow."""
wal_autocheckpoint_pages: Final = 1000
"""Pages in the WAL after which SQLite moves them into the database."""
idle_readers_max: Final = 8
"""Connections for reading that are kept for the next reader; the others are closed after use."""
recorder_busy_wait_s: Final = 5.0
"""How long a recorder that is used by itself, without a store, waits for a lock; then it is an OperationalError."""
copied_store_bytes_max: Final = 4 * 1024**3
"""A store that may be read and not written is looked at in a copy of at most this; a larger one is refused."""
copy_tries_max: Final = 10
"""How often such a copy is made again because the store's writer has begun its WAL anew meanwhile."""
copy_piece_bytes: Final = 1024 * 1024
"""Bytes of such a copy that are read at a time."""
wal_header_bytes: Final = 32
"""The beginning of a WAL: another one when the WAL is begun anew."""
wal_retry_s: Final = 0.002
"""Between two tries to switch a fresh file to WAL while another process does the same."""
subscription_poll_s: Final = 0.01
"""How often a recorder's subscription looks for new events."""
subscription_page_events_max: Final = 500
"""Events that a recorder's subscription reads at a time."""

# Folds.
step_calls_max: Final = 10_000
"""Calls that the state of a run holds: of the open step, of failed ones, and those of which nobody knows."""
steps_recent_max: Final = 64
"""Ids of completed steps that the state keeps; the rest is in the table step_ends."""
failed_steps_max: Final = 64
"""Failed steps whose attempts, calls and answers the state keeps; those of an older one are read from the log when it
is entered again, and told to the state by that entry's step.started."""
recalled_max: Final = 64
"""Calls and questions of a failed step that a step.started can tell again; the state keeps a step that has more."""
memory_bytes_max: Final = 4 * 1024 * 1024
"""The working memory of a run, as JSON, values over `inline_value_bytes_max` by reference."""
plan_tasks_max: Final = 10_000
"""Tasks of a run's plan."""
inbox_signals_max: Final = 10_000
"""Signals that a run holds untaken."""
models_max: Final = 256
"""Models with a line of their own in the cost ledger; the rest share one. So do sources of money, in a currency."""
answers_kept_max: Final = 64
"""Answers to questions that no step asked; older ones are left out of the state, the log keeps them."""
settled_kept_max: Final = 32
"""Calls of steps that are over and of which the agent was told once that nobody knows (`on_unknown="tell"`): whoever
made one may still say what became of it. For an older one it is too late."""
children_kept_max: Final = 1_000
"""Children whose status the state keeps; those that run are always among them."""
tags_max: Final = 64
"""Tags of a run."""
checkpoint_warn_bytes: Final = 50 * 1024
"""A checkpoint over this is written, with a warning."""
checkpoint_parts_told_max: Final = 3
"""Parts of the state that such a warning names: the largest."""
checkpoint_every_events: Final = 256
"""A checkpoint is written after this many events, and at each event that ends a step or the run."""
checkpoint_stretch_events: Final = 16_384
"""Beside the newest few, the last checkpoint of each such stretch of a run is kept: for replays of its middle."""
checkpoints_kept_max: Final = 3
"""The newest checkpoints of a run that are kept; older ones go, except the last of each stretch."""
states_cached_max: Final = 64
"""Folded runs that a Journal keeps in memory, beside those that it owns; another one is folded when it is asked for."""

# Leases.
lease_s: Final = 60.0
"""How long a run stays its owner's after the last sign of life; then another process may claim it."""
heartbeat_s: Final = 10.0
"""Between two signs of life of an owner."""
clock_skew_s: Final = 1.0
"""Wall clocks going back by less than this are not reported by the audit."""

# Running agents.
rounds_max: Final = 3
"""Rounds of a run: how often it is tried after a transient failure that left the agent; after the last it failed."""
backoff_s: Final = 1.0
"""Before the second round; four times as long before each one after."""
recoveries_max: Final = 3
"""Recoveries of a run that doesn't get on: no call and no step has ended in between, and it hasn't waited. After one
more it waits for `Journal.resume`. Unless `Journal.open` says otherwise."""
attempt_recoveries_max: Final = 20
"""Recoveries within one attempt of a step, whatever ended in between. After one more it waits for `Journal.resume`.
Unless `Journal.open` says otherwise."""
grace_s: Final = 8.0
"""How long calls in flight are waited for when their run leaves its process, or ends; then they are on record as lost.
After a SIGTERM the process ends then. Less than the ten seconds after which containers are killed, unless
`Journal.open` says otherwise."""
stopped_codes_max: Final = 8
"""Versions of an agent's code that a run remembers to have stopped it since it last got on; `recover_all` tries each
once. Of more the oldest is forgotten, and may be tried once more."""
brief_tasks_max: Final = 50
"""Open tasks that a brief lists, the first ones; of the others it says how many there are."""
line_tries_max: Final = 10
"""How often a word to a line is said again because its newest run has ended and gone on meanwhile; then it is
refused."""
line_names_tried_max: Final = 1000
"""Ids `ID.r2`, `ID.r3`, … that are looked at for a retry or a restart; if strangers have all, it gets an id of no
meaning."""
link_id_chars_max: Final = 110
"""Characters of the id of a line in that of a retry or a restart, which so has at most 120; a longer one is cut, with a
digest of the whole."""
link_digest_chars: Final = 12
"""Characters of that digest."""
stop_look_s: Final = 0.05
"""Between two looks of a process that was told to stop at what is in flight."""
child_id_chars: Final = 12
"""Characters of the id of an ask in that of the child that it begins."""
children_depth_max: Final = 32
"""Runs that wait for each other, one below the other, that are looked through for what is waited for in the end."""
cancel_tries_max: Final = 10
"""How often a cancel looks at a run whose head moves on all the time; then it leaves its request for the owner."""
request_parts_max: Final = 64
"""Elements of each list in a request to a model that are on record as short digests; the rest is one."""
request_search_events_max: Final = 1_000
"""Events at the end of a run among which another process's request to a model is looked for, to go on from it."""
request_lists_kept_max: Final = 8
"""Lists that a model was asked by one key, as `messages`, that are held to be gone on from; others are hashed anew."""
differences_told_max: Final = 5
"""Of what differs between what is on record and what is asked for today, so many places are named."""
differing_text_chars_max: Final = 60
"""A value that differs is cut to this where it is named."""
error_text_chars_max: Final = 20_000
"""The type, the message and the traceback of an error are each cut to this: no error is too long to be on record."""
money_digits_max: Final = 18
"""Digits of an amount of money, before and behind its point; another one is unknown."""
prices_held_max: Final = 1024
"""Prices of a model on some day and terms that a list keeps looked up; beyond it all of them are looked up anew."""
usage_bytes_max: Final = 16 * 1024
"""The usage that a model's answer tells of: a longer one is kept without `raw`; the answer holds it."""
retry_attempts: Final = 50
"""Attempts of a call within one ask, unless `Retry` says otherwise; the failure of the last one reaches the agent."""
relay_lease_s: Final = 300.0
"""How long a relay has an entry of the outbox if nobody can know whether its process lives."""
retry_first_s: Final = 1.0
"""The longest pause before the second attempt of a call, unless `Retry` says otherwise."""
retry_factor: Final = 3.0
"""Times as long is the longest pause before each further attempt, unless `Retry` says otherwise."""
retry_longest_s: Final = 300.0
"""The longest pause between two attempts of a call, unless `Retry` or the service itself says otherwise."""
retry_within_s: Final = 6 * 3600.0
"""From the first attempt of a call to the last one of its ask, unless `Retry` says otherwise."""
retry_after_s_max: Final = 366 * 86400.0
"""What a service may ask for by `Retry-After`; longer counts as this."""
refused_max: Final = 3
"""Answers of a model that `check=` refuses, within one ask: each is paid for. The last one reaches the agent."""
pause_s_max: Final = 5.0
"""A pause within a call, or a sleep, that is longer hands the run back; a shorter one is slept in its process."""
record_waits_s: Final = (0.1, 0.5, 2.0)
"""Between tries to tell the log of an outcome; when the last has failed, the store's error reaches the agent."""
hook_s: Final = 30.0
"""How long a command may take that tells people that a run waits."""
left_out_wait_s: Final = 30.0
"""How long a step waits for a task that asked for something before, in another process, and hasn't yet in this one;
then it goes on without."""
working_wait_s: Final = 30.0
"""How long a run that could wait, and leave the process, stays for a thread that is between two verbs, since the step's
last verb. One that waits for another thread by means of its own (a queue, an event) is such a thread."""
told_turns: Final = 10
"""Turns of the loop between two ends that are told: whoever was told does first what he will do at once. A coroutine
that hasn't begun after as many was not awaited."""
sleep_s_max: Final = 10 * 366 * 86400.0
"""A sleep, and a wait for a signal with a bound; a longer one is refused."""
wait_look_s: Final = 1.0
"""Whoever runs a run and waits for it looks this often whether something has come before its time."""
cancel_wait_s: float | None = 30.0
"""How long a cancel waits for what can't be cut; then it goes on without. None: until it has ended."""
stamp_min_s: Final = 10**9
"""A smaller number in the request of a call is never taken for a clock."""
date_near_days: Final = 1
"""How near to today a date in a request must be to be a clock, which may differ when the call is asked again."""
stamp_near_days: Final = 31
"""How near to now a number of seconds since 1970 in a request must be to be a clock."""

# Looking.
glance_tail_events_max: Final = 1000
"""Events of a run behind its newest checkpoint that a listing folds; beyond, it says that it doesn't know."""
family_runs_max: Final = 500
"""Of the runs below a run, so many are looked at, the nearest first, the newest of each parent first; it is told that
there are more."""
last_events: Final = 8
"""Events of a run that its summary shows: the newest."""
error_search_events_max: Final = 500
"""How far back the last error of a run is looked for; beyond, none is shown."""
progress_every_events: Final = 1000
"""How often whoever waits is told how far it is."""
ended_attempts_held_max: Final = 100
"""Failed attempts that a listing of calls remembers, for a word that is said of one later; the oldest is forgotten."""
blobs_checked_max: Final = 4_096
"""Digests of blobs that an audit has just found sound, so that one that many events share is read once."""
unknown_types_max: Final = 1_000
"""Unknown types of events that an audit reports, each once; others go unreported."""
disk_free_bytes_min: Final = 256 * 1024 * 1024
"""Less room than this on the disk of the store is a finding of `doctor`."""
doctor_audit_events_max: Final = 100_000
"""In a store of more events `doctor` doesn't compare the rows beside the events with these; `audit` does."""
runs_named_max: Final = 10
"""Runs that one check of `doctor` names; of the others it tells the number."""

# Importing.
import_piece_bytes: Final = 64 * 1024
"""A transcript is read in pieces of this size; a line that is longer than its bound is never held whole."""
import_chunk_events: Final = 1_000
"""Events that one write of an import holds; the transaction holds all of them."""
export_line_bytes_max: Final = 2 * blob_bytes_max + 4096
"""A line of an export that is longer is none: the largest blob, each character escaped, and what is around it."""
export_header_bytes_max: Final = 4096
"""The first line of an export; a file with a longer one is no export."""
transcript_line_bytes_max: Final = 64 * 1024 * 1024
"""A longer line of a transcript is quarantined unread."""
transcript_depth_max: Final = 500
"""A line of a transcript that nests deeper is quarantined unread."""
transcript_values_max: Final = 250_000
"""A line of a transcript that holds more values is quarantined unread: each takes far more memory than its text."""
import_names_held_max: Final = 4_096
"""Of the calls and sidechains of a transcript, so many are in memory, the newest; the rest is in a temporary file."""
import_messages_held_max: Final = 8
"""Of the model's messages of a transcript, so many are in memory, the newest; the rest is in a temporary file."""
import_lines_held_max: Final = 65_536
"""Of the lines of a transcript that have an id, so many are known in memory; the others in a temporary file."""
import_filter_bytes: Final = 128 * 1024
"""What tells which names of a transcript are surely not in its temporary file, for each kind of names."""
import_stream_held_max: Final = 500
"""Of the events that a transcript becomes, so many are in memory, the newest; the rest is in a temporary file."""
import_stream_held_bytes: Final = 1024 * 1024
"""The same, by the bytes of the lines that they come from."""
import_chunk_bytes: Final = 4 * 1024 * 1024
"""Bytes that one write of an import holds, and one event more; the transaction holds all of them."""
import_quarantined_held_max: Final = 1_000
"""Quarantined lines of a file that an import remembers; others it counts, and each has its note in the run."""
import_states_held_max: Final = 64
"""Folded runs that the import of an export keeps in memory; another one is folded again when it goes on."""
scratch_cache_bytes: Final = 4 * 1024 * 1024
"""Of what an import has put into its temporary file, so much is in memory."""
foreign_depth_max: Final = 48
"""How deep a foreign value may nest: less than `json_depth_max`, since events wrap it. What is deeper becomes text."""
usage_raw_bytes_max: Final = 16 * 1024
"""A longer usage object of a transcript is left to the message's `raw`."""
meta_bytes_max: Final = 64 * 1024
"""A longer `.meta.json` beside a transcript is left alone."""
error_chars_max: Final = 4000
"""An imported error's message is cut to this; the message of the tool holds it whole."""
title_chars_max: Final = 500
"""The title of an imported run is cut to this."""
version_chars_max: Final = 100
"""The version of the program that wrote a transcript is cut to this."""
finish_reason_chars_max: Final = 200
"""Why an imported model's answer ended is cut to this; `raw` holds it whole."""
stem_whole_chars_max: Final = 100
"""A transcript's name that is a run's id as it stands. A longer one is cut, and a digest is put behind it."""
stem_chars_max: Final = 80
"""What is kept of a transcript's name that is no id as it stands; a digest follows."""

# Showing.
close_ids_max: Final = 3
"""Ids that an error names because they are close to one that nothing has."""
summary_chars_max: Final = 160
"""An event in one line; what is longer is cut, with an ellipsis."""
ls_table_rows: Final = 50
"""Runs that `ls` shows as a table, unless --limit says otherwise; it says that there are more."""
whole_ids_columns_min: Final = 130
"""On a terminal of fewer columns, ids of runs are shortened."""
table_layout_rows: Final = 200
"""Rows that a table's widths are taken from; a longer cell of a later row is cut."""
output_chunk_chars: Final = 32_768
"""Output is written when it is longer than this, or at its end."""
refs_shown_max: Final = 5
"""Runs that an ambiguous RUN names; of others it says that there are more."""
refs_prefixed_runs_max: Final = 1000
"""Of the runs with a prefix, so many are looked at: the newest."""
agent_search_runs_max: Final = 20
"""Newest runs of a kind that `explain` looks at for the name of their agent, if the run itself was never claimed."""
refs_above_runs_max: Final = 32
"""Ancestors that are looked at to find which run a prefix names; beyond, the highest one found is taken."""
show_rows_max: Final = 10
"""Open calls, waits and findings that `show` lists, each; of others it tells the number, or --calls lists them."""
show_types_max: Final = 4
"""Types of events that `show` counts by name; the rest is an ellipsis."""
show_message_chars_max: Final = 2000
"""A message in `show --messages` is cut to this, unless --full."""
show_args_chars_max: Final = 600
"""The arguments of a call in `show` are cut to this, unless --full; it says how much was left out."""
asked_args_chars_max: Final = 200
"""What a person is asked with, where it stands in a sentence, is cut to this; `questions` shows more."""
edited_args_chars_max: Final = 2000
"""A line with all that a person is asked with, for him to change, is left out if that is longer."""
show_lines_max: Final = 200
"""Lines of `show --tree` and `--waterfall`, unless --limit says otherwise; it says that there are more."""
audit_events_max: Final = 20_000
"""The audit of a longer run is left to `runjournal audit`, or --audit, so that `show` comes at once."""
spans_depth_max: Final = 16
"""Runs within runs in a tree: deeper ones are named, not opened."""
spans_held_max: Final = 10_000
"""Spans of a step, or outside of steps, that wait for an end; more of them are shown as they are by then."""
spans_children_max: Final = 10_000
"""Children of a run that no event of it names: the newest ones are shown."""
tree_note_chars_max: Final = 100
"""The name and the note of a span; what is longer is cut, with an ellipsis."""
tree_depth_max: Final = 12
"""Levels that a tree draws branches of; deeper ones are drawn as deep as this."""
snapshots_max: Final = 32
"""States that a walk through a run keeps, to go back to; the oldest goes, and is folded again when it is asked for."""
snapshot_every_events: Final = 256
"""Between two states that a walk through a run keeps."""
step_changes_max: Final = 20
"""Changes of the state that `replay --step` shows of one event; of others it tells the number."""
step_value_chars_max: Final = 100
"""A value of such a change; what is longer is cut, with an ellipsis."""
diff_value_chars_max: Final = 60
"""A value that `diff` shows of one side; of a longer one the part is shown where the sides differ, with ellipses."""
state_value_chars_max: Final = 200
"""A value in a state that `replay` shows; what is longer is cut, with an ellipsis."""
import_follow_pause_s: Final = 1.0
"""How often `import --follow` looks for what has come."""
import_told_lines_max: Final = 20
"""Quarantined lines that `import` tells of; of others it tells the number."""
diff_side_chars_min: Final = 10
"""What `diff` shows of a side at least, however narrow the terminal is."""

# What runs have cost.
cost_minutes_cached_max: Final = 4096
"""Minutes of which `costs` remembers the day in a time zone."""
cost_bar_chars: Final = 20
"""The longest bar of `runjournal cost`."""

# The demo.
demo_lives_max: Final = 10
"""How often the demo starts its agent; it should end long before."""
demo_word_wait_s: Final = 60.0
"""How long the demo waits for a word of its processes; then it is a TimeoutError."""
demo_end_wait_s: Final = 10.0
"""How long the demo waits for a process that it has ended."""
demo_preview_chars_max: Final = 50
"""The arguments of a call that the demo asks about; what is longer is cut, with an ellipsis."""

# The kit that crashes agents.
crash_life_s: Final = 60.0
"""How long `crash_points` lets one process of the agent live, unless `max_s` says otherwise."""
crash_lives_max: Final = 12
"""Processes of one run in `crash_points` beyond those of a run without a crash; then the run is stuck."""
crash_same_errors_max: Final = 3
"""How often in a row the processes of such a run end by the same error; then the run is stuck."""
crash_poll_s: Final = 0.002
"""Between two looks of `crash_points` at whether a process has ended, at most."""
crash_output_bytes_max: Final = 16 * 1024 * 1024
"""What one process of an agent prints in `crash_points`, at most; then it is ended, and the run is stuck."""
crash_output_tail_bytes: Final = 64 * 1024
"""The last part of that, which is read."""
crash_told_chars_max: Final = 300
"""A value in a failure of `crash_points` is cut to this, with an ellipsis."""
crash_around_points: Final = 4
"""Points that a failure of `crash_points` tells before its crash, and twice as many behind."""
crash_memory_bytes_min: Final = 256 * 1024 * 1024
"""Free bytes of /dev/shm from which on `crash_points` keeps its stores there, where no commit waits for a disk."""
