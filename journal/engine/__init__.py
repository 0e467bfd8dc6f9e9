"""The engine: the rules of a run. Which step, which call, what a recorded call returns; it writes nothing itself."""
