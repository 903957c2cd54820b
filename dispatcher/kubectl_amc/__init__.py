"""`kubectl amc`: looks into the member clusters of a hub. A kubectl plugin (an executable kubectl-amc on PATH).

Rights: everything is read with the *user's own* identity on the hub, from the same kubeconfig that kubectl uses. It
needs `get` on memberclusters, with -M also `list`, and `get` on the members' kubeconfig Secrets in namespace
muster-system (ClusterRoles muster-viewer-members and muster-viewer-kubeconfigs, manifests/base/hub/rbac-users.yaml).
The members are then read with the identity inside those Secrets. That is the dispatcher's: who may read such a Secret
may do in the member what the dispatcher may do there, so give that role to operators only.

Modules: options (flags) -> connection (the hub) -> members (kubeconfigs of members) -> discovery (TYPE) -> fetch and
watch (reading) -> tables and documents (pure: what is printed). A verb is a module with FLAGS, `parse` and `run`,
listed in `verbs`.
"""
