"""The broker's role: master, slave or member of a Raft group, and how that changes."""
