"""Diagnose why a send or a consumer does not work."""
