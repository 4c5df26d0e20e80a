"""The way into the log that every slice shares: messages on their way in, the writer, and
responses that wait for durability.
"""
