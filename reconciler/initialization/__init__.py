"""What `reconciler init` does: read Karpenter's objects, migrate them, lay out a fleet folder."""
