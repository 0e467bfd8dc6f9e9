"""Looking: audits, summaries and comparisons of runs. Nothing here writes to a store."""
