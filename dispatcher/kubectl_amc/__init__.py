"""`kubectl amc`: looks into the member clusters of a hub. A kubectl plugin (an executable kubectl-amc on PATH).

Rights: everything on the hub is read with the *user's own* identity, from the same kubeconfig that kubectl uses. It
needs `get`, with -M also `list`, on memberclusters (ClusterRole muster-viewer-members) and `get` on the members'
kubeconfig Secrets in namespace muster-system (Role muster-viewer-kubeconfigs there); both are in
manifests/base/hub/rbac-users.yaml. The members are then read with the identity inside those Secrets. That is the
dispatcher's: whoever may read such a Secret may do in the member what the dispatcher may do there. So the Role is
aggregated to nothing, and is for operators of the fleet only.

Modules: options (flags) -> connection (the hub) -> members (kubeconfigs of members) -> discovery (TYPE) -> fetch and
watch (reading) -> tables and documents (pure: what is printed). A verb is a module with FLAGS, `parse` and `run`,
listed in `verbs`.
"""
