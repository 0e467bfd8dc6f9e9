"""Hold the write lock of a SQLite file, say so, and sleep: hold_lock.py PATH."""

import sys
import time

import apsw

connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
sys.stdout.write("inside\n")
sys.stdout.flush()
time.sleep(60)
