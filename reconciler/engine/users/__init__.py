"""Requests of the cluster's users to the fleet, and what they see of it."""
