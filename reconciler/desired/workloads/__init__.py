"""The pods that the workloads of a fleet folder stand for."""
