"""`runjournal demo`: an agent that is killed half-way, the world it acts on, and the evidence of what happened."""
