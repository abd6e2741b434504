"""Advice: the changes to a fleet's files that save the most, each judged before it is proposed."""
