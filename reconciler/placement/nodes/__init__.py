"""Nodes that are there and nodes to come: what they take, what they may still become."""
