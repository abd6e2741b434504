"""The facts of EC2: bundled, fetched, and resolved for one node class."""
