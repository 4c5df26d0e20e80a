"""Administration: one module for each noun, shared by the asyncio and the blocking client."""
