"""Parse files into data with a position for every key: YAML, schemas, findings."""
