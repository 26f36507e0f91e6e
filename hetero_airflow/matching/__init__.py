"""Matching: what fits (a bool with a typed reason), and, apart from it, how well (a number). Pure."""
