"""Tells people about a fleet: which passes and events are worth a message, and its delivery."""
