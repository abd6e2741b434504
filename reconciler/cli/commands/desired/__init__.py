"""Commands that read the desired state."""
