"""Other tools' transcripts -> events, and the journal's own lines out and in again.

An importer reads files and yields events; it never writes. `Journal` appends those of one file in one transaction, so
that a file is in the journal as far as its `taken` says, or not at all.
"""
