"""What a client decides, without socket, clock, thread or log."""
