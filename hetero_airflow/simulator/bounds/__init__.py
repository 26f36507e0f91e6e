"""Bounds."""
