"""Transactional messages: half messages, decisions and checks."""
