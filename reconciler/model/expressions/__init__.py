"""CEL expressions as Kubernetes evaluates them to select devices: pure and bounded."""
