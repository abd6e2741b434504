"""AWS data about types, prices and commitments, and how long it is cached."""
