-- Every change of an order, once, also after a purge of the stage. New ones are found by their place in the log and not
-- as those above the highest _cdc_seq: copied and repaired rows are staged after changes that are newer than they are.
{{ config(materialized='incremental', incremental_strategy='append') }}

select
    cast(order_id as ubigint) as order_id,
    cast(customer_id as ubigint) as customer_id,
    status,
    total,
    _cdc_op,
    _cdc_ts,
    _cdc_source,
    _cdc_seq,
    _cdc_row
from {{ source('shop_history', 'orders') }} as staged
{% if is_incremental() %}
anti join {{ this }} as known using (_cdc_source, _cdc_seq, _cdc_row, order_id)
{% endif %}
