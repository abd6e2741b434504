"""What is recorded, in SQLite or PostgreSQL: claims, plans, the journal, the lease."""
