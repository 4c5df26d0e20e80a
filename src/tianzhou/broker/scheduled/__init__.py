"""Messages that are delivered later: delay levels, timers and their recall."""
