"""The whole system in one process: API servers in memory, time that is computed, faults that are drawn from a seed."""
