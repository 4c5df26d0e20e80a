"""The message store: synchronous code over files, owned by one writer."""
