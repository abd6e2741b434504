"""Fewer or cheaper nodes for the same pods."""
