"""Topics and store directories as Spark tables, through PySpark, without a JAR.

    import tianzhou.spark

    spark = tianzhou.spark.session()
    orders = spark.read.format("rocketmq").option("nameserver", "127.0.0.1:9876").load("orders")

Public names are loaded on first use, because Spark is an optional extra and takes a second to
import. No module of this package has the name of a public function: importing such a module would
replace the function.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tianzhou.base.extras import missing_extra

if TYPE_CHECKING:
    from tianzhou.spark.packaging import package as package
    from tianzhou.spark.sessions import register as register
    from tianzhou.spark.sessions import session as session

__all__ = ["package", "register", "session"]

_MODULES = {
    "package": "tianzhou.spark.packaging",
    "register": "tianzhou.spark.sessions",
    "session": "tianzhou.spark.sessions",
}


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> object:
        module_name = _MODULES.get(name)
        if module_name is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = import_module(module_name)
        except ModuleNotFoundError as error:
            advice = missing_extra(error)
            if advice is None:
                raise
            raise ModuleNotFoundError(advice, name=error.name) from error
        return getattr(module, name)
