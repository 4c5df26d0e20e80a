"""The pages of a broker: what there is, what is wrong, and what can be done about it."""
