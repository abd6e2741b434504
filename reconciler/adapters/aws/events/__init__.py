"""What EC2 announces: interruptions, rebalance recommendations, scheduled events and failed checks."""
