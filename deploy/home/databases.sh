#!/bin/sh
# Makes the databases and accounts of compose.yaml in a new MySQL; its image runs it once. Two
# accounts for leases: one that may change the schema, for upgrades, and one for work.
set -eu
MYSQL_PWD=$MYSQL_ROOT_PASSWORD mysql --user=root <<SQL
CREATE DATABASE leasehold CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE DATABASE dagster CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE USER 'leasehold_admin'@'%' IDENTIFIED BY '$LEASEHOLD_ADMIN_PASSWORD';
CREATE USER 'leasehold'@'%' IDENTIFIED BY '$LEASEHOLD_PASSWORD';
CREATE USER 'dagster'@'%' IDENTIFIED BY '$DAGSTER_PASSWORD';
GRANT ALL PRIVILEGES ON leasehold.* TO 'leasehold_admin'@'%';
-- DELETE is for history alone: docs/how-to/operations.md grants it once the tables are there.
GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold.* TO 'leasehold'@'%';
GRANT ALL PRIVILEGES ON dagster.* TO 'dagster'@'%';
SQL
