"""Append streams: to one server, over replicas, and those that stay open from call to call."""
