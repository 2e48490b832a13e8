"""Evaluate: splits a batch into requests, sends them, and merges the answers."""
