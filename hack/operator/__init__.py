"""A stand-in for the training operator of a member: makes pods for PyTorchJobs as the real ones do.

Two dialects: training-operator 1.9 (kubeflow/training-operator) and arena (kubeflow/pytorch-operator, the legacy
operator that Arena installs). For tests and demonstrations: what a job's pods, Services, PodGroup and status should be
is decided by pure functions (`reconcile`), `controller` does the reading and writing.
"""
