-- Type 2: a row for each state of an order, and the time in which it was valid. A 't' ends all rows of its source table.
with steps as (
    select order_id, customer_id, status, total, _cdc_op, _cdc_ts, _cdc_source, _cdc_source_table, _cdc_seq, _cdc_row
    from {{ ref('order_changes') }}
    where _cdc_op <> 't'
    union all
    select distinct
        one.order_id, null, null, null, 'd', t._cdc_ts, t._cdc_source, t._cdc_source_table, t._cdc_seq, t._cdc_row
    from {{ ref('order_changes') }} as one
    join {{ ref('order_changes') }} as t using (_cdc_source, _cdc_source_table)
    where t._cdc_op = 't' and one._cdc_op <> 't'
),

ordered as (
    select
        *,
        lead(_cdc_ts) over (
            partition by order_id, _cdc_source, _cdc_source_table order by _cdc_seq, _cdc_row
        ) as next_ts
    from steps
)

select
    order_id,
    customer_id,
    status,
    total,
    _cdc_seq,
    _cdc_row,
    _cdc_ts as valid_from,
    next_ts as valid_to,
    next_ts is null as is_current
from ordered
where _cdc_op <> 'd'
