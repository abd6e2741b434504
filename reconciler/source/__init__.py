"""Bytes of a file to data with a place for every key: YAML, schemas, findings."""
