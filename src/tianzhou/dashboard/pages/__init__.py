"""One module for each entry of the menu."""
