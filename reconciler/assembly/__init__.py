"""Chooses the adapters: the only place that knows which external system implements a port."""
