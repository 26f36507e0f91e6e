"""What a request or a lease adds to a pod (`pod_parts`, `pod_override`, `pod_merge`; pure), and deletion of pods."""
