"""A local fleet: one hub and N members, each a real Kubernetes control plane run as plain processes on loopback."""
