#!/bin/bash
# The image runs this once, with an empty data directory: the databases of the shards, and the account that writes them.
mysql -uroot -p"$MYSQL_ROOT_PASSWORD" <<SQL
CREATE USER writer@'%' IDENTIFIED BY '$WRITER_PASSWORD';
CREATE DATABASE shop_0;
CREATE DATABASE shop_1;
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, CREATE TEMPORARY TABLES ON \`shop\\_0\`.* TO writer@'%';
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, CREATE TEMPORARY TABLES ON \`shop\\_1\`.* TO writer@'%';
SQL
