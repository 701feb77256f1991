"""One model on several processes: starting them, talking between them, and splitting the work."""
