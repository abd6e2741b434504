"""Existing and planned nodes: the pods that fit, and the instance types that remain possible."""
