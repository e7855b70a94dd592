"""What a configuration stands for in a worker: a store, and where its events go."""

from __future__ import annotations

from pathlib import Path

from session_manager.config import (
    BridgeAdapter,
    BridgeConfig,
    Configuration,
    InvalidConfiguration,
    base_directory,
)
from session_manager.dispatch import Runtime
from session_manager.edge.account import Account
from session_manager.edge.addresses import address, same_engine
from session_manager.edge.failures import EngineError
from session_manager.errors import StorageError, Unready
from session_manager.paging import Limits
from session_manager.stores import LOCAL


class Runtimes:
    """Builds them for the worker of a name on the engine at a URL. `intents` is the file that a bridge has."""

    def __init__(self, url: str, name: str, account: Account, intents: Path) -> None:
        self._url, self._name, self._account, self._intents = url, name, account, intents

    async def build(self, configuration: Configuration, *, replayed: bool) -> Runtime:
        adapter = configuration.adapter
        if isinstance(adapter, BridgeAdapter):
            return await self._bridge(adapter.config, configuration.limits, replayed=replayed)
        store = LOCAL[adapter.name](adapter.config, base_directory())
        await store.open()
        account = self._account
        return Runtime(
            store,
            account.publish,
            configuration.limits,
            account.expect,
            announced=account.told_all,
            concern=account.concern,
        )

    async def _bridge(self, config: BridgeConfig, limits: Limits, *, replayed: bool) -> Runtime:
        try:
            address(config.url)
        except EngineError as error:
            raise InvalidConfiguration(f"adapter.config.url: {error}") from None
        if await same_engine(config.url, self._url):
            raise InvalidConfiguration("adapter.config.url: a bridge cannot lead to the engine that it is on")
        from session_manager.edge.bridge import Bridge

        bridge = Bridge(config, self._name, self._account, self._intents)
        try:
            await bridge.open(replayed=replayed)
        except StorageError as error:
            raise Unready(error.why) from error
        return Runtime(
            bridge.store,
            bridge.publish,
            limits,
            self._account.expect,
            owns_store=False,
            announced=bridge.announced,
            replayed=bridge.replayed,
        )
