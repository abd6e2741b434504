"""Commands that read the recorded state."""
