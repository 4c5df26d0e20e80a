"""Simulated parts of the world: a disk whose crashes can be enumerated."""
