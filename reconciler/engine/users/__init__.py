"""What users of the cluster ask of the fleet, and what they see of it."""
