"""The cost-optimizing packing: try many ways to fill nodes and use the cheapest."""
