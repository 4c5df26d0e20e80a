"""The stored record, which is also the pulled and the replicated record. Pure."""
