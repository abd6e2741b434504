"""EC2 instance type data: bundled, fetched, and resolved for a node class."""
