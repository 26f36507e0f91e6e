"""The figures of a simulation, and how they are shown: tables, JSON, charts and a page.

To add a figure: compute it in `figures`, and add a row in `tables`.
"""
