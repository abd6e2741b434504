"""The pods of the workloads in a fleet folder."""
