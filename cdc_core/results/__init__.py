"""Result sets as Arrow columns: what a SELECT says, in the bytes and types that the stream stages for the same values.

`TableReader` reads rows of one table definition, `read_columns` the result of any query. Both use the binary protocol
on a connection of ours, and make no Python object per row.

    result_columns.py  a result set's own column definitions, and the wire form of each type
    row_packets.py     the kernel that frames packets and locates values
    answer.py          the buffer between the socket and that kernel
    statement.py       one prepared statement, from PREPARE to CLOSE
    value_columns.py   located values as Arrow arrays
"""

from cdc_core.results.table_reader import TableReader, read_columns

__all__ = ["TableReader", "read_columns"]
