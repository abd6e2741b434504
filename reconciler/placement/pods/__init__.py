"""Pods to place: which there are, which are alike, and what they give up."""
