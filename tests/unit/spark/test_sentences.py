"""One sentence from the output of Spark, with real examples."""

import pytest

from tianzhou.spark.errors import sentence_of

STREAM = """[STREAM_FAILED] Query [id = 5d0d, runId = af61] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform \
initialOffset: Traceback (most recent call last):
  File "source.py", line 98, in initialOffset
    self._target = self._ask()
                   ^^^^^^^^^^^
  File "topics.py", line 52, in told
    raise SourceError(
tianzhou.spark.errors.SourceError: [ROCKETMQ.UNKNOWN_TOPIC] topic 'nothing' does not exist
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Current State: INITIALIZING"""
RAISED = "AttributeError: 'int' object has no attribute 'upper'"
WORKER = f"""An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "steps.py", line 3, in loud
    return text.upper()
           ^^^^^^^^^^
{RAISED}
"""
PLAN = """[UNRESOLVED_COLUMN.WITHOUT_SUGGESTION] A column `x` cannot be resolved; line 1 pos 7;
'Project ['x]
+- SubqueryAlias orders"""
BATCH = """An exception was thrown: Traceback (most recent call last):
  File "table.py", line 9, in write
tianzhou.spark.tables.errors.TableError: column n of the table is bigint; cast it
"""


@pytest.mark.parametrize(
    ("printed", "sentence"),
    [
        (STREAM, "[ROCKETMQ.UNKNOWN_TOPIC] topic 'nothing' does not exist"),
        (WORKER, f"An exception was thrown from the Python worker: {RAISED}"),
        (PLAN, PLAN.partition(";\n")[0]),
        (BATCH, "column n of the table is bigint; cast it"),
        ("", "Spark gave no reason"),
    ],
)
def test_spark_error_is_summarised_in_one_sentence(printed: str, sentence: str) -> None:
    assert sentence_of(RuntimeError(printed)) == sentence
