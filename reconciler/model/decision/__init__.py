"""What is decided about a fleet, in the form in which a plan holds and encodes it."""
