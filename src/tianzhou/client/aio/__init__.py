"""Clients on an event loop."""
