"""Desired state: from the files of a git revision to a fleet, or to every error in it."""
