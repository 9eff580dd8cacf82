"""Measure: what was accepted, at which position, at what cost."""
