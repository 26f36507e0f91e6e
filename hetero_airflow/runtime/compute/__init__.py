"""Settings of torch that fit the leased device."""
