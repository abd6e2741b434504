"""Chooses the adapters: the only place that knows which outside thing stands behind a port."""
