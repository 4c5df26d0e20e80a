"""What Spark needs to start: Java, the Python of its workers, and this package as a file."""
