"""Reboots: how a node is drained, rebooted and taken back."""
