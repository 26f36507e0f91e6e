"""Packing."""
