"""An Evaluate on its way: cut into requests, sent, and put together."""
