"""What all clients of an event loop share: connections, routes and heartbeats."""
