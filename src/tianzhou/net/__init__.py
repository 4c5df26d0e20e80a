"""Sockets around the wire protocol: the only place where bytes meet an event loop."""
