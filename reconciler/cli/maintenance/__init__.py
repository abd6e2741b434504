"""The parts of ``reconciler state``: adoption and pruning."""
