"""I/O with an API server: the `Api` seam, the client, reflectors, Leases, Events."""
