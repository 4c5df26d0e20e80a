"""Reading: pulls, long polling and queries for single messages."""
