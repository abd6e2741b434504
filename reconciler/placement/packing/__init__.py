"""The second packing: many ways to fill nodes, of which the cheapest is kept."""
