"""Commands that answer "what if": plan and simulate. They change nothing."""
