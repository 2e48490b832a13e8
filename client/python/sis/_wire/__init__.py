"""Messages of sis.v1, and the arrays in their bytes."""
