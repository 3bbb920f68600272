"""Decodes binlog bytes to Arrow columns: no sockets, no files, no server."""
