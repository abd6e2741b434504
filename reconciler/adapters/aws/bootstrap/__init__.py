"""User data: the configuration with which a machine joins the cluster at its first boot.

There is one module for each image family; all take the same ``Setup`` (aws reference 4.3 and 4.4).
"""
