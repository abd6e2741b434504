"""EC2 events: interruptions, rebalance recommendations, scheduled events and failed checks."""
