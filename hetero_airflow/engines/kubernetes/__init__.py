"""Kubernetes: device requests as pods, nodes as workers, and an engine over KubernetesExecutor.

`engine`, `adapter`, `leasing_executor` and `pod_scheduler` run in the scheduler's process. `watch` keeps nodes and pods
up to date in threads, and `calls` makes all calls in another one, so the scheduler's loop never waits for an answer.
`pods`, `selectors`, `claims`, `slices` and `states` are pure: they read and make JSON values or the official client's
models.

A request is refused if a condition can't be expressed to the cluster, because the pod would run on the wrong device.
Conditions on software, such as torch's version, depend on the image; the pod carries them as an annotation.
"""
