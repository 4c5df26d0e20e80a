"""The remoting protocol without sockets. Pure."""
