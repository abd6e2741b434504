"""Notifies people about a fleet: which passes and events lead to a message, and its delivery."""
