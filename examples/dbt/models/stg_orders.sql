select
    cast(order_id as ubigint) as order_id,
    cast(customer_id as ubigint) as customer_id,
    status,
    total,
    placed_at
from {{ source('shop_lake', 'orders') }}
