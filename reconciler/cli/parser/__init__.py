"""The parser of the command line: from arguments to frozen requests."""
