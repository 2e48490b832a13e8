"""The messages and stub of the API sis.v1 (proto/sis/v1)."""
