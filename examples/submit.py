"""Tianzhou's commands under `spark-submit`, which takes files that end with `.py`:

spark-submit --master spark://host:7077 --py-files tianzhou.zip submit.py pipeline run archive.yml
"""

from tianzhou.cmd.main import main

main()
