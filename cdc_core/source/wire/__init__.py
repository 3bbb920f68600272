"""The bytes of a source's log: the dump connection, its buffer, and where events begin and end."""
