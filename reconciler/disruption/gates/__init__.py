"""Checks that hold a node back: budgets, rate limits, settings, PodDisruptionBudgets, retries."""
