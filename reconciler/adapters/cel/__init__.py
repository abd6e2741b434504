"""Evaluates CEL expressions that a repository brings, apart from this process."""
