"""What a pass writes to the cluster besides its nodes: Events, copies of NodeClaims, costs of pods."""
