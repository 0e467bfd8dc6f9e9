"""What the events mean: pure folds over a run's events. Nothing here reads a store, a clock or a file."""

if __name__ != "runjournal.projections":
    raise ImportError(f"import this package as runjournal.projections, not as {__name__}")
