"""A real broker inside a test: real sockets, a controllable clock, faults on demand."""
