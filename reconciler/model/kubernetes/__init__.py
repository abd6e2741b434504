"""The Kubernetes kinds that decisions depend on."""
