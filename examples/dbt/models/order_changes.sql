-- Every change of an order, once. New ones are found by their place in the log and not as those above the highest
-- _cdc_seq: copied and repaired rows come after changes that are newer than they are.
{{ config(materialized='incremental', incremental_strategy='append') }}

select
    cast(order_id as ubigint) as order_id,
    cast(customer_id as ubigint) as customer_id,
    status,
    total,
    _cdc_op,
    _cdc_ts,
    _cdc_source,
    _cdc_source_table,
    _cdc_seq,
    _cdc_row
from {{ source('shop_lake', 'orders__changes') }} as published
{% if is_incremental() %}
anti join {{ this }} as known using (_cdc_source, _cdc_seq, _cdc_row, _cdc_op)
{% endif %}
