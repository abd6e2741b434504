"""Plans on a pull request: which fleets changed, what is reported, and the comment."""
