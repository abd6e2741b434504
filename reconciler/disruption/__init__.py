"""Which nodes may go now, why, and what replaces them; and, for the others, why not."""
