"""The reasons for disrupting a node, one module each."""
