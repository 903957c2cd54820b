"""The hub program: queues, quota, cluster choice, dispatch, status, failover."""
