"""`tianzhou completion`: what a shell needs to complete commands, options, topics and groups."""

import click
from click.shell_completion import get_completion_class

VARIABLE = "_TIANZHOU_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script for a shell: `eval "$(tianzhou completion bash)"` in its start-up file."""
    found = get_completion_class(shell)
    assert found is not None, "click knows these three"
    script = found(ctx.find_root().command, {}, "tianzhou", VARIABLE)
    # Not `source()`: that looks for the shell, which need not be on the machine that prints.
    click.echo(script.source_template % script.source_vars())
