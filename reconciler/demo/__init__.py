"""The story of ``reconciler demo``, and the environment in which it runs."""
