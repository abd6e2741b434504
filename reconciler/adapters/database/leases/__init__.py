"""Who may act for a fleet: leases, fencing, and the replicas that share fleets."""
