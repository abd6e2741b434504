"""What an EC2NodeClass selects in an account: images, subnets, security groups, reservations."""
