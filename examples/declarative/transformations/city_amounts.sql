-- Payments per city, recomputed from the streaming table in each run.
CREATE MATERIALIZED VIEW city_amounts AS
SELECT city, count(*) AS payments, sum(amount) AS amount
FROM payments
GROUP BY city
