"""What runs now: pure decoding of what a cluster and EC2 answer, and its shape as nodes."""
