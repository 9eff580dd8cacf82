"""The cycle: draft, verify, commit."""
