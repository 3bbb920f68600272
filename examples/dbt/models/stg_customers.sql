select
    cast(id as ubigint) as customer_id,
    name,
    country,
    status,
    balance
from {{ source('shop_lake', 'customers') }}
