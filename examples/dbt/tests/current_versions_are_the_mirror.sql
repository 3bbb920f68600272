(select order_id, customer_id, status, total from {{ ref('order_versions') }} where is_current
 except all
 select order_id, customer_id, status, total from {{ ref('stg_orders') }})
union all
(select order_id, customer_id, status, total from {{ ref('stg_orders') }}
 except all
 select order_id, customer_id, status, total from {{ ref('order_versions') }} where is_current)
