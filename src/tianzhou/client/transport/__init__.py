"""Connections: the only modules of the client that use sockets."""
