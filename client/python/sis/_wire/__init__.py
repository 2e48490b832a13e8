"""Messages of sis.v1, and arrays in their bytes."""
