"""Draft better, draft faster: backbone, heads, confidence."""
