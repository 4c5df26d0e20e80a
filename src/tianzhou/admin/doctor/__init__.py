"""Why a send or a consumer does not work: looks, and says so in sentences."""
