"""The recorded state in SQLite or PostgreSQL: claims, plans, the journal, the lease."""
