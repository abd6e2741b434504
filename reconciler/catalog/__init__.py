"""What can be launched: instance types, offerings and prices, bundled or from a file."""
