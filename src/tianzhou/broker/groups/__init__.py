"""Consumer groups: settings, members, offsets, locks, lag and administration."""
