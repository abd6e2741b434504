"""Karpenter's kinds, and the requirements and labels that they share."""
