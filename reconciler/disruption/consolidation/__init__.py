"""Consolidation: fewer or cheaper nodes for the same pods."""
