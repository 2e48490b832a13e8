"""The calls of the service as messages, to one server or to several that act as one."""
