"""The name server: which brokers live, and which topics they hold. All of it is in memory."""
