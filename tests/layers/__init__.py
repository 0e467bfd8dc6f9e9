"""The crash layers: what may go wrong beneath and beside a store, done to it many times, with judges.

`make crash-report` runs them all; `cd tests && python -m layers --help` runs one. Each finding replays from its seed.
"""
