"""Schema evolution of a table: columns are added, never removed, and never change their type."""

from pyspark.sql.types import DataType, StructField, StructType

from tianzhou.spark.tables.errors import TableError


def merged(before: StructType, now: StructType, where: str = "") -> StructType:
    """Merge two schemas, columns of `before` first. Raises TableError if types differ."""
    known = {field.name.lower(): field for field in before.fields}
    fields = list(before.fields)
    for field in now.fields:
        old = known.get(field.name.lower())
        if old is None:
            fields.append(StructField(field.name, field.dataType))
            continue
        name = f"{where}{old.name}"
        kind = _merged_kind(old.dataType, field.dataType, name)
        fields[fields.index(old)] = StructField(old.name, kind)
    return StructType(fields)


def _merged_kind(before: DataType, now: DataType, name: str) -> DataType:
    if isinstance(before, StructType) and isinstance(now, StructType):
        return merged(before, now, f"{name}.")
    # Types are compared without their nullability.
    if before.simpleString() != now.simpleString():
        raise TableError(
            f"column {name} of the table is {before.simpleString()}; the new rows have "
            f"{now.simpleString()}: cast it in the transformation, or write to another table"
        )
    return before
