"""Savings plans and reserved instances: what they cover and what is left of them."""
