"""Subscription filters: tags, and expressions over message properties. Pure."""
