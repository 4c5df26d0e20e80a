"""Tables of Parquet files in which every row is once, and which any other tool can read."""
