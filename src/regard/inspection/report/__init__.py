"""Self-contained HTML reports about sights."""
