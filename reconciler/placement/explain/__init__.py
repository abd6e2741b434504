"""Explains why a pod cannot be scheduled and what would have to change."""
