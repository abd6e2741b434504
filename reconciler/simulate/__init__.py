"""The parts of ``reconciler simulate``: the engine in virtual time."""
