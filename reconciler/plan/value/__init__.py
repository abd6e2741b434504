"""The plan itself: a value without behaviour."""
