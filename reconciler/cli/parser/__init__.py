"""The parser of the command line: from words to frozen requests."""
