"""Commands that answer "what if": plan, simulate, snapshot. They change nothing."""
