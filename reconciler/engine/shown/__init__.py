"""What others see of passes: Events, NodeClaims and deletion costs, and operations by commit."""
