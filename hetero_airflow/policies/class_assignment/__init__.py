"""Class assignment."""
