"""Replication of a log: masters and slaves, Raft groups, and when a message is confirmed."""
