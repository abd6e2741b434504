"""What can be bought: instance types, offerings and prices, bundled or from a file."""
