"""Pure: Kubernetes objects as small typed structs, and the arithmetic on them. No I/O, no clock."""
