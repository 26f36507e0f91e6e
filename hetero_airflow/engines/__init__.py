"""Engines: the existing executors that run what was placed, one adapter each."""
