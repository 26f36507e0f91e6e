"""Kubernetes: device requests as pods, nodes as workers, and an engine over KubernetesExecutor.

What decides is pure and works on plain JSON values or on the official client's models, without a client:

- `pod` says what a request adds to a pod, `merging` adds it without overwriting what is there;
- `conditions` are a request's conditions in terms of the labels that feature discovery gives nodes;
- `claims` is a request as a ResourceClaimTemplate, for clusters with dynamic resource allocation (DRA);
- `nodes` reads nodes and pods into the inventory, `pod_states` says how a pod stands.

What runs, in the scheduler's process:

- `engine` is the port over KubernetesExecutor (`launching`), with one `site` a cluster; `pod_override` binds a pod to
  its lease;
- `mirror` keeps a list of the API by watching it; of such lists a `cluster` is made: nodes, the pods of leases
  (`leased_pods`), and what other pods have (`node_use`). No question is asked for a lease, and none in the loop;
- `clients` and `deleting` speak to the API.

A request is refused where the cluster could not be told of a condition, since a pod that ignores it would run on
the wrong device. Conditions on software, such as torch's version, are the image's own matter: the pod carries them as
an annotation.
"""
