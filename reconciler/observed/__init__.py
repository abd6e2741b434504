"""What runs now: pure decoding of the responses of a cluster and EC2, and their nodes."""
