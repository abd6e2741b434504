"""Runs kustomize and helm on a copy of the files: no network, no plugins, no inherited settings."""
