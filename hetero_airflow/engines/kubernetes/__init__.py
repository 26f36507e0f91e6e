"""Kubernetes: device requests as pods, nodes as workers, and an engine over KubernetesExecutor.

Pure code, on JSON values or on the official client's models:

- `pods` says what a request or a lease adds to a pod; `selectors` turns its conditions into node affinity; `claims`
  makes a ResourceClaimTemplate for clusters with dynamic resource allocation (DRA);
- `slices` reads the devices that DRA drivers publish, and which claims have them;
- `states` reads how a pod stands; `names`, `options` and `resources` hold what these share.

In the scheduler's process:

- `engine` is the engine over KubernetesExecutor (`leasing_executor`, `pod_scheduler`), with one `adapter` for
  each of `clusters`;
- `watch` keeps nodes, the pods of leases and other pods up to date in threads, and `calls` makes all calls in another
  one, so the loop never waits for an answer; `queued_api` is what KubernetesExecutor gets as its client;
- `unseen_pods` knows the pods that were sent and that no watch has shown; `outage` logs that a cluster is away;
- `clients` connects to the API.

A request is refused if a condition can't be expressed to the cluster, because the pod would run on the wrong device.
Conditions on software, such as torch's version, depend on the image; the pod carries them as an annotation.
"""
