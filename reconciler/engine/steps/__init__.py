"""The steps of a pass, a module for each kind."""
