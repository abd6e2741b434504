"""The pods to place: which they are, which are alike, and which preferences they drop."""
