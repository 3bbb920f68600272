"""Private servers for the demo, the tests and the benchmarks: no root, no container, free ports on 127.0.0.1.

Each server is a handle and a context manager; its data is in a directory of its own (a temporary one unless
named), and it ends with the `with` block, or with the Python that started it, however that ends.
"""
