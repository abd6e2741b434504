"""From inputs to a plan."""
