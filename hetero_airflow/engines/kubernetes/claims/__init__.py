"""Requests as claims for clusters with dynamic resource allocation: `claim_template`, with selectors in `cel`."""
