"""Developer tools: the local fleet, the stand-in operator, benchmarks. Nothing here ships in the product."""
