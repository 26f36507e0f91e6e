"""The processes of one task and of a gang: their addresses, their rendezvous, and how they agree."""
