"""Simulates what Kubernetes does with pods: its scheduler, volume binder and DaemonSets.

A plan makes room for pods but does not decide where they run. Simulations, and runs of a fleet
until it converges, use this package for that.
"""
