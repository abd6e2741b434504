"""Resolve the selectors of an EC2NodeClass: images, subnets, security groups, reservations."""
