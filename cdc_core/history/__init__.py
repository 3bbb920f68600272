"""What a history of changes means: the only place that knows it.

A staged file has changes; a reader asks what they leave: the last change of each key (a run), the rows of a table (its
state), or what a row could have been at a moment (verification). All of them begin with the same two steps, which take
Arrow and give Arrow, and know no file, no server and no engine:

    rule.py          what a table's history is read by
    events.py        a change as events, one for each key that it touches
    parts.py         events split by key: each part can be judged without the others
    history.py       `History`: a caller fills it with the events of a part, and asks
    order.py         which of several events is the last one
    winners.py       of all events of a key, the last one, and what it lacks
    values.py        values that the log did not carry, which older events have
    truncates.py     which TRUNCATEs count, and which events they undo
    keyless_rows.py  tables without a key: rows that come and go, counted
    guard.py         what a winner does at a target that has something under its key
    by_key.py        staged changes, each as a change of one key
    codes.py         numbers for values: equal where a key treats the values as equal

The table of cases. `k` is the key after the change, `k0` the one before it:

    change                           events
    c, r  insert, copied row         k: there, and it begins a life
    u     update, k = k0             k: there
    u     update, k <> k0            k0: gone; k: there, and it begins a life that continues the one under k0
    d     delete                     k: gone
    t     truncate, or the beginning of a copy that takes the place of older rows: no key; undoes what its source table
          wrote before it

    question                         answer
    which event of a source is last  the greatest (_cdc_seq, _cdc_row), in whatever order they are read
    which of several sources' wins   the later (_cdc_ts, _cdc_source); rows of several source tables that must not share
                                     keys are apart: one that is there comes before those that are gone
    a value that the log left out    the row's own last older one: back to the beginning of its life, and from there
                                     through the change of its key; else it stays absent, which is not NULL
    a delete                         ends a life: what comes after it under the key is another row
    a table without a key            an update is a row that goes and one that comes; copies of equal rows are summed up
                                     for a run batch by batch, because a target has a batch as a whole or not at all,
                                     and for a state over everything

Of many changes of a key few matter: the last one, the last of each value that later ones lack, and some more
(`reduced`). So memory is bounded by the keys of a part, not by its changes.

tests/history_model.py says the same with a Python dict; property tests compare them.
"""
