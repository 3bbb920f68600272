"""Connections to MySQL and MariaDB: client, TLS, session settings, and the meaning of their errors."""
