"""Words everyone shares. Imports nothing of ours and nothing that acts."""
