"""Devices by ResourceClaim: what pods request, what nodes have, and which devices they get."""
