"""The parts of ``reconciler simulate``: the engine, carried out in virtual time."""
