"""What a pass does, one module for each kind of step."""
