"""The command line: people look at runs. It parses, calls and prints; it holds no logic of runs."""

if __name__ != "runjournal.cli":
    raise ImportError(f"import this package as runjournal.cli, not as {__name__}")
