"""One package for each external system; they do not import each other."""
