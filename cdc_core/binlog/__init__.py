"""Bytes of the binlog to columns: no sockets, no files, no server. What comes in is bytes; what goes out is Arrow."""
