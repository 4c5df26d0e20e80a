"""`tianzhou completion`: shell completion of commands, options, topics and groups."""

from typing import Final

import click
from click.shell_completion import get_completion_class

VARIABLE: Final = "_TIANZHOU_COMPLETE"

BASH: Final = """\
%(complete_func)s() {
    local IFS=$'\\n' word response words=() glued=
    # bash cuts words at : and =; an address has the one, a property the other.
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if [[ ${#words[@]} -gt 0 && ( -n $glued || $word == [:=]* ) ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        if [[ $word == *[:=] ]]; then glued=yes; else glued=; fi
    done
    response=$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) \\
        %(complete_var)s=bash_complete "$1")
    for word in $response; do
        case ${word%%,*} in
            dir) COMPREPLY=(); compopt -o dirnames ;;
            file) COMPREPLY=(); compopt -o default ;;
            plain) COMPREPLY+=("${word#*,}") ;;
        esac
    done
    return 0
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""
"""click's own script splits `-n 127.0.0.1:9876` into three words and asks a wrong NameServer."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script; load it with `eval "$(tianzhou completion bash)"`."""
    found = get_completion_class(shell)
    assert found is not None, "click knows these three"
    script = found(ctx.find_root().command, {}, "tianzhou", VARIABLE)
    template = BASH if shell == "bash" else script.source_template
    # Not `source()`, which requires the shell to be installed on this machine.
    click.echo(template % script.source_vars())
