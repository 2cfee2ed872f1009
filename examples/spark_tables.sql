-- A stream by SQL alone, with Spark's own shell: spark-sql -f examples/spark_tables.sql
-- The streams ORDERS (orders.>) and TOTALS (totals.>) must exist.
SET example.servers = nats://127.0.0.1:4222;

CREATE TABLE orders USING jetstream
OPTIONS (servers '${example.servers}', stream 'ORDERS', payloadFormat 'json', payloadSchema 'id bigint, amount double');

CREATE TABLE totals USING jetstream OPTIONS (servers '${example.servers}', stream 'TOTALS');

INSERT INTO totals (subject, data)
SELECT concat('totals.', split_part(subject, '.', 2)), binary(string(sum(value.amount)))
FROM orders WITH (subjects = 'orders.eu,orders.us')
GROUP BY subject;

SELECT subject, string(data) AS total FROM totals ORDER BY subject;

DROP TABLE orders;
DROP TABLE totals;
