"""Types, limits and errors that all packages share. Imports no other package of Tianzhou and has no
side effects."""
