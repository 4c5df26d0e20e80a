"""Topics: their table, attributes, permissions, removal and administration."""
