"""Savings plans and reserved instances: what they cover and how much of them is unused."""
