"""What differs between desired, recorded and observed, and which side moved."""
