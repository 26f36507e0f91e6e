"""Pure rules about the health of devices: error classes, error rates, and transitions."""
