"""Verify smarter, and change nothing: the law of the output stays the target's.

No neural network lives in this folder; everything here takes plain tensors.
"""
