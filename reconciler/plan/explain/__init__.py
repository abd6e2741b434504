"""Answers to «why»: about a pod, a node, a NodePool or the next window."""
