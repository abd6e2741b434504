"""``reconciler.yaml`` and the other layers of settings."""
