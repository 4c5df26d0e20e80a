"""The same clients for code that blocks."""
