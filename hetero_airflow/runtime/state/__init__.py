"""The state of a training: how it is copied, written without pickle, and restored."""
