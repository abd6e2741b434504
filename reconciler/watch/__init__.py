"""Beside a running Karpenter: predictions of what it does next, and their score."""
