"""Backtests: a recorded workload is replayed against the engine in virtual time."""
