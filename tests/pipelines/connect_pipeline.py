"""Runs a pipeline over Spark Connect in its own program: a process has only one kind of session."""

import sys
from pathlib import Path

import tianzhou.spark
from tianzhou.admin.commands.spark_session import SETTINGS
from tianzhou.spark.pipelines.pipeline_file import load
from tianzhou.spark.pipelines.running import run_to_end


def main(file: Path) -> None:
    # Starts a Connect server on this machine and connects to it.
    spark = tianzhou.spark.session(remote="local[2]", config=SETTINGS)
    pipeline = load(file)
    for _ in range(2):
        samples = run_to_end(spark, pipeline, file.parent)
        sys.stdout.write(f"{sum(sample.rows_in for sample in samples)}\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
