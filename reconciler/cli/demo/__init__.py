"""The story that ``reconciler demo`` tells, and the stage on which it is played."""
