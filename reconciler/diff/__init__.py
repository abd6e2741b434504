"""Compare the desired, recorded and observed state, and determine which of them changed."""
