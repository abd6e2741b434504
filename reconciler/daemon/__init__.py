"""Several fleets in one process: which they are, who serves which, and how they are watched."""
