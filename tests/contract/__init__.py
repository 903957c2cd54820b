"""What muster relies on an API server for: each case runs on a real kube-apiserver and on the simulated one."""
