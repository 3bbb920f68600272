"""From a server's log to blocks: server facts, where to start, the stream, transactions, building."""
