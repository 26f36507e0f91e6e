"""What policies use in addition to the store's snapshot: estimates, DAG edges, site links, attained service."""
