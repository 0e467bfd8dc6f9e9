"""Writing: the one guarded append, the folded states and checkpoints behind it, leases, and rebuilt index tables."""
