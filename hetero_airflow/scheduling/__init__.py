"""The cycle that joins request, matching, policy, lease and dispatch."""
