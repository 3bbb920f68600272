select
    cast(order_id as ubigint) as order_id,
    line_no,
    sku,
    quantity,
    price
from {{ source('shop_lake', 'order_items') }}
