"""The broker: plain functions over batches of requests, around a message store."""
