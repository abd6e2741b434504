"""Desired state: files of a git revision in; a fleet, or every fault in it with its place, out."""
