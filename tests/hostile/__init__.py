"""Attacks on the product, each run for real, with the defence that has to hold.

``python -m tests.hostile`` runs them all and prints one row for each attack.
"""
