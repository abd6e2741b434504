"""Adjust a catalog for one fleet: overlays, preferences, unavailable offerings, measured memory."""
