"""Labels, annotations and fixed names that hub and member agree on.

The three identity annotations (PROTOCOL "Words") are on every object muster makes in a member, on the
pods through the job's template, and (id only) on the hub's job. An object without our hub id is not ours.
"""

HUB_ID = "muster.dev/hub-id"
JOB_ID = "muster.dev/id"
EPOCH = "muster.dev/epoch"
"""Decimal integer. One epoch is one attempt to run a job in one member."""

MANAGED = "muster.dev/managed"
"""Label, value "true", on every object the hub made in a member: what `kubectl amc` shows as ADOPTION Y."""
ROLE = "muster.dev/role"
"""Label on pods of hub-owned gangs: the reservation's role name ("master", "worker")."""

POD_GROUP = "scheduling.x-k8s.io/pod-group"
"""Label on pods: the PodGroup (same namespace) the pod belongs to. kubernetes-sigs/scheduler-plugins."""
ACK_GANG_NAME = "pod-group.scheduling.sigs.k8s.io/name"
ACK_GANG_MIN_AVAILABLE = "pod-group.scheduling.sigs.k8s.io/min-available"
"""Labels on pods that make a gang without a PodGroup object (ACK, and scheduler-plugins before v0.19)."""

MUSTER_NAMESPACE = "muster-system"
"""Namespace of reservations, Leases and kubeconfig Secrets, on the hub and in members."""
QUEUE_NAMESPACE = "kube-queue"
QUOTA_TREE_NAMESPACE = "kube-system"

CAPACITY_NAME = "cluster"
"""The one ClusterCapacity object of a member."""
EXTENDER_LEASE = "muster-extender"
"""Lease in the member: the extender's leadership and heartbeat."""
HUB_LEASE = "muster-hub"
"""Lease in the member, renewed by the dispatcher: proof that the hub is alive and has not fenced us (rule 12)."""
HUB_INCARNATION = "muster.dev/incarnation"
"""Annotation on HUB_LEASE: the hub's take-over counter (rule 18)."""
DISPATCHER_LEASE = "muster-dispatcher"
"""Lease on the hub: dispatcher leadership."""

MUSTER_SCHEDULER = "muster"
"""schedulerName of the exact-plan profile (percentageOfNodesToScore 100)."""
DEFAULT_SCHEDULER = "default-scheduler"

FINALIZER = "muster.dev/cleanup"
"""On the hub's job: it goes once nothing of the job is left in any member."""
FIELD_MANAGER = "muster"
