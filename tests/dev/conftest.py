"""The engines that every promise of the protocol is tried on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from session_manager.dev import EngineThread
from tests.engines import NoEngine, real_engine

KINDS = ["loopback", pytest.param("real", marks=pytest.mark.engine)]

#: How long engines wait for a worker to name its namespace.
GRACE_S = 0.6


@pytest.fixture(scope="session", params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An engine of each kind, shared by the tests: every test uses ids of its own."""
    if request.param == "loopback":
        with EngineThread(config_dir=tmp_path_factory.mktemp("config"), grace_s=GRACE_S) as engine:
            yield engine.url
        return
    try:
        with real_engine({"III_NAMESPACE_GRACE_MS": str(int(GRACE_S * 1000))}) as running:
            yield running
    except NoEngine as error:
        pytest.skip(str(error))
