"""The scheduler: which pod goes where, which NodeClaims are new, and why not."""
