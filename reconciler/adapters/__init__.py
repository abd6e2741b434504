"""One package for each outside thing; they do not import each other."""
