"""A declarative reconciliation engine for EC2 node fleets, driven by a git repository."""

__version__ = "0.1.0"
