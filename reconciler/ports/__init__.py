"""What the engine needs from the outside world, in the terms of the domain.

Each port has an adapter that talks to the real thing and one in ``adapters/simulated`` that keeps
the same promises; ``tests/contracts`` puts the same questions to both. A method that reads
returns everything or raises: a partial answer never looks like an empty one.
"""
