"""A real broker inside a test: real sockets, a clock to hold, faults on demand."""
