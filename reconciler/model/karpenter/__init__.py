"""The kinds of Karpenter, and the requirements and labels that they share."""
