"""Read and write whole queues over blocking connections, as the tasks of a Spark job do."""
