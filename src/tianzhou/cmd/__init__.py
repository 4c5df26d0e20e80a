"""Composition roots: they read arguments, files and the environment, and wire the rest."""
