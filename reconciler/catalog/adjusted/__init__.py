"""A catalogue as one fleet sees it: overlays, preferences, refused offerings, discovered memory."""
