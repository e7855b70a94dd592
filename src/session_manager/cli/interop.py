"""`session-manager import|export|follow`: other agents' sessions, one line per system."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import structlog

from session_manager.terminal import fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from session_manager.dispatch import Service
    from session_manager.edge.extras import Extras
    from session_manager.interop.opencode.progress import MirrorProgress


class _Systems(click.Group):
    """A group with a command per foreign system, which is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["opencode"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        from session_manager.interop.opencode import cli

        return {
            "import": cli.import_opencode,
            "export": cli.export_opencode,
            "follow": cli.follow_opencode,
        }[self.name or ""]


@click.group("import", cls=_Systems)
def import_() -> None:
    """Bring sessions of other agents in."""


@click.group(cls=_Systems)
def export() -> None:
    """Take sessions out, for other agents to import."""


@click.group(cls=_Systems)
def follow() -> None:
    """Mirror the sessions of a running agent, live."""


def opencode_extras(*, functions: bool, follow: str | None) -> Extras:
    """What `serve --with opencode` and `serve --follow-opencode URL` add to a worker. Ends the command where a server
    cannot be followed."""
    from session_manager.edge.extras import ExtraFunction, Extras
    from session_manager.interop.opencode.client import NotInstalled, ServerFailed, check_address
    from session_manager.interop.opencode.functions import FUNCTIONS, WorkerFunction
    from session_manager.interop.opencode.targets import ServiceTarget
    from session_manager.schema import document

    if follow is not None:
        try:
            check_address(follow)
        except (NotInstalled, ServerFailed) as error:
            fail(str(error))

    async def answer(function: WorkerFunction, service: Service, payload: Any) -> Any:
        return await function(ServiceTarget(service), payload)

    async def mirror(service: Service) -> None:
        from session_manager.interop.opencode.cli import PASSWORD
        from session_manager.interop.opencode.client import Server
        from session_manager.interop.opencode.follow import Mirror
        from session_manager.interop.opencode.progress import on_change

        assert follow is not None
        server = Server(follow, os.environ.get(PASSWORD))
        try:
            await Mirror(server, ServiceTarget(service), tell=on_change(_logging(follow))).run()
        finally:
            await server.close()

    return Extras(
        functions=tuple(
            ExtraFunction(one.id, one.description, document(one.request), document(one.response), partial(answer, one))
            for one in (FUNCTIONS if functions else ())
        ),
        tasks=() if follow is None else (mirror,),
    )


def _logging(url: str) -> Callable[[MirrorProgress], None]:
    log = structlog.get_logger("session_manager.opencode")

    def tell(progress: MirrorProgress) -> None:
        if progress.connected and progress.left_out:
            log.warning("following all but some", server=url, left_out=progress.left_out, reason=progress.last)
        elif progress.connected:
            log.info("following", server=url)
        else:
            log.warning("not following at present", server=url, left_out=progress.left_out, reason=progress.last)

    return tell
