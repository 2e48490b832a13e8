"""The calls of the service, as messages: to one server, or to several as if they were one."""
