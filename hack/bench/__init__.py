"""How fast gangs are bound, beside the stock scheduler without gangs, on a real API server: `python -m hack.bench`."""
