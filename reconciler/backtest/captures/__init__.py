"""Traces from what other programs have recorded: audit logs of EKS, and captures of kubereplay."""
