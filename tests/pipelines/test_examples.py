"""The examples run as their pages say."""

import os
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from pipelines.conftest import Place
from tianzhou.spark.pipelines.pipeline_file import load
from tianzhou.spark.pipelines.running import run_to_end
from tianzhou.spark.sessions import provide_java
from tianzhou.spark.tables.table import Table

EXAMPLES = Path(__file__).parents[2] / "examples"
BIN = Path(sys.prefix) / "bin"


def test_example_pipeline_writes_both_sinks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIANZHOU_NAMESERVER", place.nameserver)
    shutil.copytree(EXAMPLES / "pipelines", place.directory, dirs_exist_ok=True)
    topic, other = place.topic("payments"), place.topic("big")
    place.send(
        topic,
        [{"orderId": "T1", "amount": "499.99"}, {"orderId": "T2", "amount": 501}],
        tags="北京",
    )
    place.send(topic, [{"orderId": "T3", "amount": 900}, "broken"])
    given = {
        "source.topic": topic,
        "sinks.1.options.topic": other,
        "sinks.1.options.group": f"w-{other}",
        "source.group": f"r-{topic}",
    }
    pipeline = load(place.directory / "big-payments.yml", given=given)
    run_to_end(place.spark, pipeline, place.directory)
    rows = Table(str(place.directory / "lake/big_payments")).read(place.spark).collect()
    assert {(row.orderId, row.amount, row.city) for row in rows} == {
        ("T2", Decimal("501.00"), "北京"),
        ("T3", Decimal("900.00"), "nowhere"),
    }
    assert sorted(message.tags or "" for message in place.broker.stored(other)) == ["", "北京"]
    assert Table(str(place.directory / "lake/payments_quarantine")).state().rows == 1


def run_project(project: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if "SPARK" not in key}
    environment |= {
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": provide_java(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    command = [
        BIN / "spark-pipelines",
        "run",
        "--conf",
        "spark.sql.catalogImplementation=hive",
        "--conf",
        f"spark.sql.warehouse.dir={project}/warehouse",
    ]
    done = subprocess.run(
        command,
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_declarative_example_adds_new_rows_in_each_run(place: Place, tmp_path: Path) -> None:
    """Each run adds new rows to the streaming table and recomputes the view."""
    project = tmp_path / "project"
    shutil.copytree(EXAMPLES / "declarative", project)
    topic = place.topic("payments")
    spec = project / "spark-pipeline.yml"
    text = spec.read_text().replace("127.0.0.1:9876", place.nameserver)
    spec.write_text(text.replace("/tmp/tianzhou-declarative", str(project)))
    source = project / "transformations" / "payments.py"
    source.write_text(source.read_text().replace('"topic", "payments"', f'"topic", "{topic}"'))
    place.send(topic, [{"orderId": "T1", "amount": "1.50"}] * 3, tags="北京")
    run_project(project)
    place.send(topic, [{"orderId": "T2", "amount": "7.00"}], tags="上海")
    run_project(project)
    warehouse = f"{project}/warehouse"
    payments = place.spark.read.parquet(f"{warehouse}/payments").collect()
    assert len({(row.queueId, row.queueOffset) for row in payments}) == len(payments) == 4
    rows = place.spark.read.parquet(f"{warehouse}/city_amounts").collect()
    assert {(row.city, row.payments, row.amount) for row in rows} == {
        ("北京", 3, Decimal("4.50")),
        ("上海", 1, Decimal("7.00")),
    }
