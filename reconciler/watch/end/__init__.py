"""The fleet once Karpenter has nothing left to do: predicted as a range, and compared."""
