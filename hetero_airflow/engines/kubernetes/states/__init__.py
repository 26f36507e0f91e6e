"""How a pod stands: `causes` has the tables of Kubernetes' reasons, `pod_state` reads a pod. Pure."""
