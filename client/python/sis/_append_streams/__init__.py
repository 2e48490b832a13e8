"""Append streams: to one server, and over replicas."""
