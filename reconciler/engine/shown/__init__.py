"""What a pass writes to the cluster besides nodes: Events, NodeClaims, deletion costs of pods."""
