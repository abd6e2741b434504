"""NodeOverlays for a cluster that keeps Karpenter: what they should be, as files and as objects."""
