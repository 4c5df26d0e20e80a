"""Built-in pipelines, as files to copy and edit."""

from collections.abc import Generator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Final

from tianzhou.spark.pipelines import pipeline_file
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.model import Pipeline
from tianzhou.spark.pipelines.pipeline_file import load, parse

NAMES: Final = ("archive", "aggregate", "order-check", "trace")
_FILES: Final = resources.files("tianzhou.spark.pipelines") / "templates"


def template(name: str) -> str:
    """Return the text of a built-in pipeline. Raises PipelineError."""
    if name not in NAMES:
        raise PipelineError(f"unknown pipeline {name!r}; built-in are {', '.join(NAMES)}")
    return (_FILES / f"{name}.yml").read_text("utf-8")


@contextmanager
def located(what: str) -> Generator[None]:
    """Add file and line to errors that are found while a pipeline is planned."""
    try:
        yield
    except PipelineError as error:
        is_file = Path(what).is_file()
        text = Path(what).read_text("utf-8") if is_file else template(what)
        found = pipeline_file.located(text, what if is_file else f"<{what}>", error)
        if found is error:
            raise
        raise found from error


def find(what: str, given: dict[str, Any] | None = None) -> tuple[Pipeline, Path]:
    """Return a pipeline by file or built-in name, and the directory its paths are relative to."""
    file = Path(what)
    if file.suffix in (".yml", ".yaml") or file.is_file():
        return load(file, given=given), file.resolve().parent
    if what in NAMES:
        return parse(template(what), f"<{what}>", given=given), Path.cwd()
    raise PipelineError(
        f"{what!r} is neither a file nor one of {', '.join(NAMES)}; "
        "`tianzhou pipeline init NAME` writes one"
    )
