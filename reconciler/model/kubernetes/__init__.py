"""The kinds of Kubernetes that a decision reads."""
