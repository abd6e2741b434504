"""Decide which nodes can be disrupted now, why, what replaces them, and why others cannot."""
