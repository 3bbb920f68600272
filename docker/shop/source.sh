#!/bin/bash
# The image runs this once, with an empty data directory: a shop with rows, and the account that reads its log.
mysql -uroot -p"$MYSQL_ROOT_PASSWORD" <<SQL
CREATE USER cdc@'%' IDENTIFIED BY '$CDC_PASSWORD';
GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO cdc@'%';
CREATE DATABASE shop;
GRANT SELECT ON shop.* TO cdc@'%';
USE shop;
CREATE TABLE customers (
  id BIGINT UNSIGNED PRIMARY KEY AUTO_INCREMENT,
  name VARCHAR(80) NOT NULL,
  country CHAR(2) NOT NULL,
  created_at DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)
);
CREATE TABLE orders (
  order_id BIGINT UNSIGNED PRIMARY KEY AUTO_INCREMENT,
  customer_id BIGINT UNSIGNED NOT NULL,
  total DECIMAL(12,2) NOT NULL,
  status ENUM('open', 'paid', 'sent') NOT NULL DEFAULT 'open',
  KEY customer (customer_id)
);
SET SESSION cte_max_recursion_depth = 10000;
INSERT INTO customers (name, country)
  WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
  SELECT CONCAT('customer ', i), ELT(1 + i % 3, 'de', 'fr', 'jp') FROM n;
INSERT INTO orders (customer_id, total)
  WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
  SELECT 1 + i % 1000, i * 1.25 FROM n;
SQL
