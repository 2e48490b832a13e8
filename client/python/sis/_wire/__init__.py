"""What is sent and received: bytes and messages of sis.v1, and arrays in them."""
