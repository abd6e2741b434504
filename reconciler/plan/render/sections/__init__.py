"""The sections of a plan as data: each is defined once, and every rendering paints them."""
