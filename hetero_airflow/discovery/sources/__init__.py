"""What several probes read with: tools, files, software versions; and the checks of untrusted values.

All of it runs in a probe's process on a worker host. `values` is pure.
"""
