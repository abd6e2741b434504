"""The scheduler: which node each pod gets, which NodeClaims to create, and why pods do not fit."""
