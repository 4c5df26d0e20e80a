"""The benchmarks of `make bench`: each result is compared with a yardstick of the same run."""
