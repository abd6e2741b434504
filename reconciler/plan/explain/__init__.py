"""Explanations of a pod, a node, a NodePool or the next window."""
