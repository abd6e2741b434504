"""What ``reconciler check`` looks at in an account."""
