"""The per-member program: a scheduler extender that decides gangs beside a stock kube-scheduler."""
