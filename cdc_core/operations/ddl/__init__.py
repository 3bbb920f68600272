"""Changes of definitions that reach every shard of a target, or say where they stopped.

    script       a file of ALTER TABLE statements about logical tables, with the way back
    fingerprint  a definition as a value that is equal on all shards
    foretell     what the statements make of a definition, and how the server executes them, tried on an empty copy
    rollout      one shard, then the others in waves; every step compared with the server before and after it

The definitions on the servers are the truth: meta keeps what was decided and how far each shard is, for people and for
another process that continues.
"""
