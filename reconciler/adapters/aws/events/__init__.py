"""What EC2 announces: interruptions, rebalancing, scheduled events and failed checks."""
