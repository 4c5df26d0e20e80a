"""Spark: topics and store directories as tables, through PySpark, without a JAR.

    import tianzhou.spark

    spark = tianzhou.spark.session()
    orders = spark.read.format("rocketmq").option("nameserver", "127.0.0.1:9876").load("orders")

Names are loaded when they are first used: Spark is an extra, and takes a second to import. No
module here has the name of one of them, because importing it would put it in that name's place.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tianzhou.base.extras import missing_extra

if TYPE_CHECKING:
    from tianzhou.spark.sessions import register as register
    from tianzhou.spark.sessions import session as session
    from tianzhou.spark.shipping import package as package

_PLACES = {
    "package": "tianzhou.spark.shipping",
    "register": "tianzhou.spark.sessions",
    "session": "tianzhou.spark.sessions",
}


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(place)
    except ModuleNotFoundError as error:
        advice = missing_extra(error)
        if advice is None:
            raise
        raise ModuleNotFoundError(advice, name=error.name) from error
    return getattr(module, name)
