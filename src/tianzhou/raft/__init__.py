"""Consensus without time, disk or network: how a group of brokers keeps one log."""
