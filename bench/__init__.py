"""What `make bench` runs: each figure stands beside a yardstick taken in the same run."""
