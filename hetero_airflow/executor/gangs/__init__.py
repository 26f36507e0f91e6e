"""Gangs."""
