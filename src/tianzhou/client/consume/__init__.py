"""The machinery of consumers that belong to a group."""
