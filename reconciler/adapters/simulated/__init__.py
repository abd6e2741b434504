"""A cloud, a cluster and a clock that keep the promises of the ports, on one machine."""
