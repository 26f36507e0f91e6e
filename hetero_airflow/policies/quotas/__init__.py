"""Quotas of teams, under every policy. `team_quotas` holds the rule, and `team_devices` counts what teams hold."""
