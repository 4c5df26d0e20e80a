"""The jdbc sink: the rows of a micro-batch, and a record that they are stored, in one transaction.

1. Spark's tasks write the rows to a staging table, which belongs to this sink alone.
2. One transaction copies them to the table, as inserts or, with `keys`, as an upsert, and records
   the micro-batch in `tianzhou_batches`.
3. The staging table is dropped.

A repeated micro-batch finds its record and does nothing. No row of the table is ever deleted, so
other pipelines and other programs may write to it as well.
"""

import hashlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField

from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.model import JdbcSink
from tianzhou.spark.pipelines.pipeline_file import as_text

LEDGER: Final = "tianzhou_batches"
_CREATE_LEDGER: Final = (
    "CREATE TABLE {name} (query VARCHAR(200) NOT NULL PRIMARY KEY, batch BIGINT NOT NULL)"
)
_STAGINGS_MAX: Final = 3
"""How often the rows are staged. A task that was retried after its rows were committed, because its
executor was lost, leaves rows twice."""


@dataclass(frozen=True)
class Dialect:
    """How a database spells what standard SQL lacks."""

    driver: str
    upsert: str
    """What follows the SELECT of an upsert; `{keys}` and `{updates}` are lists of columns."""
    update: str = "{column} = excluded.{column}"
    otherwise: str = " ON CONFLICT ({keys}) DO NOTHING"
    """Follows the SELECT if all columns are keys."""
    where: str = ""
    writers: int | None = None
    """Maximum number of connections that may write at the same time."""
    has_own_types: bool = False
    """Whether Spark cannot create tables there: it has no dialect for SQLite."""


_DIALECTS: Final = {
    "postgresql": Dialect("org.postgresql.Driver", " ON CONFLICT ({keys}) DO UPDATE SET {updates}"),
    "sqlite": Dialect(
        "org.sqlite.JDBC",
        " ON CONFLICT ({keys}) DO UPDATE SET {updates}",
        where=" WHERE true",  # else SQLite reads ON as the condition of a join
        writers=1,
        has_own_types=True,
    ),
    "mysql": Dialect(
        "com.mysql.cj.jdbc.Driver",
        " ON DUPLICATE KEY UPDATE {updates}",
        update="{column} = VALUES({column})",
        otherwise=" ON DUPLICATE KEY UPDATE {first} = VALUES({first})",
    ),
}
_DIALECTS["mariadb"] = Dialect(
    "org.mariadb.jdbc.Driver",
    _DIALECTS["mysql"].upsert,
    _DIALECTS["mysql"].update,
    _DIALECTS["mysql"].otherwise,
)


def dialect_of(url: str) -> Dialect | None:
    """Return the dialect of a JDBC URL, or None for a database without upserts here."""
    return _DIALECTS.get(url.removeprefix("jdbc:").partition(":")[0])


@dataclass(frozen=True)
class ToDatabase:
    """Writes micro-batches to a database table. `query` identifies the pipeline and the sink."""

    sink: JdbcSink
    query: str

    def __call__(self, rows: DataFrame, batch: int) -> None:
        sink = self.sink
        if sink.batch_column is not None:
            rows = rows.withColumn(sink.batch_column, F.lit(batch).cast("bigint"))
        if not sink.exactly_once:
            _append(rows, sink, sink.table)
            return
        with _connected(rows, sink) as database:
            try:
                self._write(database, rows, batch)
            except Py4JJavaError as error:
                thrown: Any = error.java_exception
                reason = str(thrown.getMessage() or thrown)
                raise PipelineError(f"table {sink.table}: {reason.strip()}") from error

    def staging_table(self) -> str:
        """The table for rows of a micro-batch that is not stored yet."""
        return _beside(self.sink.table, f"tianzhou_{_digest(self.query)}")

    def _write(self, database: "_Database", rows: DataFrame, batch: int) -> None:
        sink = self.sink
        ledger = _beside(sink.table, LEDGER)
        if not database.columns_of(ledger):
            database.execute(_CREATE_LEDGER.format(name=ledger))
        last = database.number(f"SELECT batch FROM {ledger} WHERE query = '{self.query}'")
        if last is not None and last >= batch:
            return
        if not database.columns_of(sink.table):
            self._create(database, rows)
        if sink.keys:
            database.check_unique(sink.table, sink.keys)
        staging = self.staging_table()
        self._stage(database, rows, staging)
        copy = self._copy(database, rows.columns, staging)
        record = (
            f"INSERT INTO {ledger} (query, batch) VALUES ('{self.query}', {batch:d})"
            if last is None
            else f"UPDATE {ledger} SET batch = {batch:d} WHERE query = '{self.query}'"
        )
        database.transact(copy, record)
        database.execute(f"DROP TABLE {staging}")

    def _create(self, database: "_Database", rows: DataFrame) -> None:
        """Create the table with the types that Spark chooses for the columns."""
        sink, dialect = self.sink, dialect_of(self.sink.url)
        if dialect is not None and dialect.has_own_types:
            columns = [f"{database.quoted(f.name)} {_sqlite_type(f)}" for f in rows.schema.fields]
            database.execute(f"CREATE TABLE {sink.table} ({', '.join(columns)})")
        else:
            _append(rows.limit(0), sink, sink.table)
        if sink.keys:
            index = f"tianzhou_{_digest(sink.table)}_keys"
            keys = ", ".join(map(database.quoted, sink.keys))
            database.execute(f"CREATE UNIQUE INDEX {index} ON {sink.table} ({keys})")

    def _stage(self, database: "_Database", rows: DataFrame, staging: str) -> None:
        """Write all rows to the staging table, each once."""
        dialect = dialect_of(self.sink.url)
        if dialect is not None and dialect.writers is not None:
            rows = rows.coalesce(dialect.writers)
        for _ in range(_STAGINGS_MAX):
            self._create_staging(database, rows.columns, staging)
            counted = Observation()
            observed = rows.observe(counted, F.count(F.lit(1)).alias("rows"))
            _append(observed, self.sink, staging)
            if database.number(f"SELECT count(*) FROM {staging}") == counted.get["rows"]:
                self._check_keys(database, staging)
                return
        raise PipelineError(
            f"table {self.sink.table}: executors were lost {_STAGINGS_MAX} times while a "
            "micro-batch was written; it is repeated at the next start"
        )

    def _create_staging(self, database: "_Database", columns: Sequence[str], staging: str) -> None:
        if database.columns_of(staging):
            database.execute(f"DROP TABLE {staging}")
        if dialect_of(self.sink.url) is None:
            return  # Spark creates it, with types of its own
        found = database.resolved(self.sink.table, columns)
        database.execute(
            f"CREATE TABLE {staging} AS SELECT {', '.join(found)} FROM {self.sink.table} WHERE 1=0"
        )

    def _check_keys(self, database: "_Database", staging: str) -> None:
        """Check that every row of a micro-batch has keys of its own. Raises PipelineError."""
        if not self.sink.keys:
            return
        keys = list(map(database.quoted, self.sink.keys))
        listed = ", ".join(keys)
        none = " OR ".join(f"{key} IS NULL" for key in keys)
        if database.number(f"SELECT count(*) FROM {staging} WHERE {none}"):
            raise PipelineError(
                f"sinks: keys of table {self.sink.table}: a row has no value for one of "
                f"{', '.join(self.sink.keys)}; filter such rows or replace null"
            )
        groups = f"SELECT {listed} FROM {staging} GROUP BY {listed} HAVING count(*) > 1"
        if database.number(f"SELECT count(*) FROM ({groups}) doubled"):
            raise PipelineError(
                f"sinks: keys of table {self.sink.table}: two rows of a micro-batch have the same "
                f"{', '.join(self.sink.keys)}; group by these columns in transform, for example "
                "with max_by(column, queueOffset)"
            )

    def _copy(self, database: "_Database", columns: Sequence[str], staging: str) -> str:
        """The statement that copies the staged rows to the table."""
        sink, dialect = self.sink, dialect_of(self.sink.url)
        into = ", ".join(database.resolved(sink.table, columns))
        selected = ", ".join(database.resolved(staging, columns))
        copy = f"INSERT INTO {sink.table} ({into}) SELECT {selected} FROM {staging}"
        if not sink.keys:
            return copy
        assert dialect is not None, "the file was checked"
        keys = database.resolved(sink.table, sink.keys)
        others = [name for name in database.resolved(sink.table, columns) if name not in keys]
        updates = ", ".join(dialect.update.format(column=name) for name in others)
        suffix = dialect.upsert if others else dialect.otherwise
        ending = suffix.format(keys=", ".join(keys), updates=updates, first=keys[0])
        return copy + dialect.where + ending


def _sqlite_type(field: StructField) -> str:
    match field.dataType:
        case StringType():
            return "TEXT"
        case BinaryType():
            return "BLOB"
        case kind:
            return kind.simpleString().upper()


def _fetched(rows: Any, *columns: str) -> list[tuple[str, ...]]:
    """Columns of a result as text. The result is closed: while one is open, SQLite shows its
    connection the database as it was."""
    found: list[tuple[str, ...]] = []
    while rows.next():
        found.append(tuple(str(rows.getString(column)) for column in columns))
    rows.close()
    return found


def _beside(table: str, name: str) -> str:
    """The name of another table in the schema of a table."""
    schema, dot, _ = table.rpartition(".")
    return f"{schema}{dot}{name}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _options(sink: JdbcSink) -> dict[str, str]:
    dialect = dialect_of(sink.url)
    driver = {} if dialect is None else {"driver": dialect.driver}
    return driver | as_text(sink.options)


def _append(rows: DataFrame, sink: JdbcSink, table: str) -> None:
    writer = rows.write.format("jdbc").options(url=sink.url, dbtable=table, **_options(sink))
    writer.mode("append").save()


@contextmanager
def _connected(rows: DataFrame, sink: JdbcSink) -> "Generator[_Database]":
    jvm: Any = getattr(rows.sparkSession, "_jvm", None)
    if jvm is None:
        raise PipelineError(
            "sinks: jdbc writes each row exactly once only in a classic session, not through Spark "
            "Connect; set exactlyOnce: false to accept that a crash doubles rows"
        )
    # Spark's own way to a connection: it finds drivers in the JARs of the session.
    scala = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(_options(sink))
    options = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(
        sink.url, sink.table, scala
    )
    dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(sink.url)
    connection = dialect.createConnectionFactory(options).apply(-1)
    try:
        yield _Database(connection)
    finally:
        connection.close()


class _Database:
    """One connection of the driver. Outside `transact` every statement commits at once."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._facts: Any = connection.getMetaData()
        self._quote = str(self._facts.getIdentifierQuoteString()).strip()

    def quoted(self, name: str) -> str:
        return f"{self._quote}{name.replace(self._quote, self._quote * 2)}{self._quote}"

    def execute(self, sql: str) -> None:
        statement = self._connection.createStatement()
        try:
            statement.executeUpdate(sql)
        finally:
            statement.close()

    def number(self, sql: str) -> int | None:
        """The first column of the first row, if there is one."""
        statement = self._connection.createStatement()
        try:
            found = statement.executeQuery(sql)
            return int(found.getLong(1)) if found.next() else None
        finally:
            statement.close()

    def transact(self, *statements: str) -> None:
        self._connection.setAutoCommit(False)
        try:
            for sql in statements:
                self.execute(sql)
            self._connection.commit()
        except Py4JJavaError:
            self._connection.rollback()
            raise
        finally:
            self._connection.setAutoCommit(True)

    def columns_of(self, table: str) -> list[str]:
        """The columns of a table in their order; empty if the table does not exist."""
        found: list[str] = []
        for schema, name in self._spellings(table):
            rows = self._facts.getColumns(self._connection.getCatalog(), schema, name, None)
            # `_` and `%` of the name are wildcards here.
            listed = _fetched(rows, "TABLE_NAME", "COLUMN_NAME")
            found += [column for table_name, column in listed if table_name == name]
            if found:
                break
        return found

    def resolved(self, table: str, columns: Sequence[str]) -> list[str]:
        """The quoted names of columns as the table spells them. Raises PipelineError."""
        names = self.columns_of(table)
        by_name = {name.lower(): name for name in names} | {name: name for name in names}
        missing = [name for name in columns if name not in by_name and name.lower() not in by_name]
        if missing:
            raise PipelineError(
                f"table {table} has no column {', '.join(missing)}; it has {', '.join(names)}"
            )
        return [self.quoted(by_name.get(name) or by_name[name.lower()]) for name in columns]

    def check_unique(self, table: str, keys: Sequence[str]) -> None:
        """Check that a primary key or unique index covers exactly the keys. Raises PipelineError:
        without one an upsert would be rejected, or add rows."""
        wanted = {key.lower() for key in keys}
        indexes: dict[str, set[str]] = {}
        for schema, name in self._spellings(table):
            catalog = self._connection.getCatalog()
            for rows, index in (
                (self._facts.getPrimaryKeys(catalog, schema, name), "PK_NAME"),
                (self._facts.getIndexInfo(catalog, schema, name, True, True), "INDEX_NAME"),
            ):
                for of, column in _fetched(rows, index, "COLUMN_NAME"):
                    indexes.setdefault(f"{index} {of}", set()).add(column.lower())
        if wanted not in indexes.values():
            raise PipelineError(
                f"table {table} has no primary key or unique index on exactly {', '.join(keys)}; "
                "create one, because an upsert needs it"
            )

    def _spellings(self, table: str) -> Generator[tuple[str | None, str]]:
        """Schema and name as the database may have stored them: unquoted names change case."""
        schema, _, name = table.rpartition(".")
        bare, place = name.strip('"`'), schema.strip('"`')
        seen: set[tuple[str | None, str]] = set()
        for spelling in (str, str.lower, str.upper):
            one = (spelling(place) if place else None, spelling(bare))
            if one not in seen:
                seen.add(one)
                yield one
