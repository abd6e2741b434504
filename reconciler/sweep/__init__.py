"""Sweeps: many evaluations that do not depend on each other, in any number of processes."""
