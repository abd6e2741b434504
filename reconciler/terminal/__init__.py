"""The nodes of a fleet on a terminal, chosen with keys (``reconciler top --interactive``)."""
