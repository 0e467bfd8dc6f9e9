"""What was sent."""
