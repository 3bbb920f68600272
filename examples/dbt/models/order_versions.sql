-- Type 2: a row for each state of an order, and the time in which it was valid.
with ordered as (
    select
        *,
        lead(_cdc_ts) over (partition by order_id order by _cdc_seq, _cdc_row) as next_ts
    from {{ ref('order_changes') }}
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
