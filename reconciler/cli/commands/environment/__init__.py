"""Commands about the environment of a fleet."""
