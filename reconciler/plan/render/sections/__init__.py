"""The sections of a plan as data: each is defined once, and every renderer uses them."""
