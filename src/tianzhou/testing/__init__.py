"""The shipped test kit. Only tests import it."""
