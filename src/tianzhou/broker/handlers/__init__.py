"""One module per kind of request. They don't import each other."""
