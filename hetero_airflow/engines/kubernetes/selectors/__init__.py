"""Selectors."""
