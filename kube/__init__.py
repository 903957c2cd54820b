"""What the extender and the dispatcher both stand on: `objects` (pure) and `api` (I/O)."""
