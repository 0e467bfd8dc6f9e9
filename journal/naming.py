"""Which run an id names."""
