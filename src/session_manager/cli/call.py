"""`session-manager call`: one call of one function."""

from __future__ import annotations

import json

import click

from session_manager import door
from session_manager.cli import light
from session_manager.cli.options import Seconds, arguments, url_option
from session_manager.errors import MalformedRequest
from session_manager.terminal import fail


def _named(_: click.Context, __: click.Parameter, namespace: str) -> str:
    if not namespace.strip():
        raise click.BadParameter("a namespace has a name")
    return namespace


@click.command()
@click.argument("function")
@click.argument("pairs", nargs=-1, metavar="[K=V]...")
@click.option("--json", "text", help="The payload as JSON; k=v pairs are laid over it.")
@click.option("--pick", metavar="KEY", help="Print only this key of the reply, text without quotes.")
@click.option(
    "--timeout", "seconds", default=30.0, type=Seconds(), show_default=True, help="Seconds to wait for the reply."
)
@click.option(
    "--namespace",
    "-n",
    envvar="III_NAMESPACE",
    default="default",
    callback=_named,
    help="Where the function is registered.",
)
@url_option
def call(
    function: str,
    pairs: tuple[str, ...],
    text: str | None,
    pick: str | None,
    seconds: float,
    namespace: str,
    url: str,
) -> None:
    """Call FUNCTION and print its reply as JSON.

    A value that is JSON is taken as such (limit=5, metadata='{"owner":"ann"}'), anything else as text. Errors go to
    stderr, and the exit status is 1.

    \b
    session-manager call session::create title=hello
    session-manager call session::append session_id=s_… \\
      message='{"role":"user","content":[{"type":"text","text":"hi"}],"timestamp":0}'
    """
    with light.plain():
        from session_manager.edge.client import InvocationError
        from session_manager.edge.failures import EngineError
        from session_manager.edge.visitor import visit

    try:
        door.check_carried({"function": function, "namespace": namespace})
        payload = arguments(pairs, text)
        with visit(url) as client:
            reply = client.run(client.call(function, payload, seconds=seconds, namespace=namespace))
    except InvocationError as error:
        fail(error.message)
    except (MalformedRequest, TimeoutError, EngineError) as error:
        fail(str(error))
    if pick is not None:
        if not isinstance(reply, dict) or pick not in reply:
            fail(f"the reply has no key {pick!r}")
        reply = reply[pick]
        if isinstance(reply, str):
            click.echo(reply)
            return
    click.echo(json.dumps(reply, indent=2, ensure_ascii=False, sort_keys=True))
