"""A language server: findings, completion and hover for the files of a fleet in an editor."""
