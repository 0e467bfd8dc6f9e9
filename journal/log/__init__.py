"""What is stored: events, their exact bytes, and the stores that keep them.

Nothing here knows what an event means to a run; that is `runjournal.projections`.
"""
