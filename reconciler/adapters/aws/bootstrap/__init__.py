"""User data: what a machine reads at its first boot to become a node of the cluster.

One module for each image family; all take the same ``Setup`` (aws reference 4.3 and 4.4).
"""
