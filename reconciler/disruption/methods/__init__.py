"""The reasons for which a node goes, one module each."""
