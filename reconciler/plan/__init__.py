"""The plan: one value that says what would be done, in which order, and why; and its renderings."""
