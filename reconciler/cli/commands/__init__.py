"""One module for each command, loaded when that command runs."""
