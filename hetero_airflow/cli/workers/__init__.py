"""Commands on workers: devices, workers, drain, undrain, and the agent of a worker host (enroll, revoke, worker)."""
