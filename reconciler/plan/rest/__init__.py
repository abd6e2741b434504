"""A fleet at rest: what it comes to when everything that is left to do has been done.

The planner is asked again and again, as the engine asks it, and each answer is applied to the
cluster in memory: no journal, no calls, and two stated spans instead of measured latencies. The
cost of a change is the difference between two fleets at rest
(``docs/decisions/0017-the-cost-of-a-change.md``).
"""
