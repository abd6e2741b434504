"""The checks that ``reconciler check`` makes."""
