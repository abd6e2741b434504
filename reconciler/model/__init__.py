"""The terms of the domain: frozen values and exact arithmetic, without I/O, clock or logging."""
