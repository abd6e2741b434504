"""Rules about other pods: spread, affinity and anti-affinity."""
