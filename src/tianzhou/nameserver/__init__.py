"""The NameServer: the live brokers and their topics, in memory."""
