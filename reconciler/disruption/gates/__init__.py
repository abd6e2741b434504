"""What holds a node back: budgets, guards, our own settings, PodDisruptionBudgets, patience."""
