"""Kubernetes: device requests as pods, nodes as workers.

What decides is pure and works on plain JSON values or on the official client's models, without a client:

- `pod` says what a request adds to a pod, `merging` adds it without overwriting what is there;
- `conditions` are a request's conditions in terms of the labels that feature discovery gives nodes;
- `claims` is a request as a ResourceClaimTemplate, for clusters with dynamic resource allocation (DRA);
- `nodes` reads nodes and pods into the inventory, `pod_states` says how a pod stands.

A request is refused where the cluster could not be told of a condition, since a pod that ignores it would run on
the wrong device. Conditions on software, such as torch's version, are the image's own matter: the pod carries them as
an annotation.
"""
