"""What Kubernetes itself does with pods: its scheduler, its volume binder, its DaemonSets.

A plan makes room for pods; where they end up is not its to say. Simulations and fleets that are
carried to rest ask here.
"""
