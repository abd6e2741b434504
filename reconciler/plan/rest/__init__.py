"""A fleet at rest: the state of a fleet when nothing is left to do.

The planner is called repeatedly, as by the engine, and each plan is applied to a cluster in memory:
no journal, no calls, and two stated spans instead of measured latencies. The cost of a change is
the difference between two fleets at rest (``docs/decisions/0017-the-cost-of-a-change.md``).
"""
