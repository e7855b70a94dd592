"""Pages of session records, in an order and filtered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, get_args

import structlog

from session_manager.errors import StorageError
from session_manager.filters import matches
from session_manager.model import SessionMeta, Status
from session_manager.store import ListPage, ListQuery, Order
from session_manager.stores.memory import take
from session_manager.stores.sqlite import rows
from session_manager.stores.sqlite.labels import digest

log = structlog.get_logger("session_manager.sqlite")

STATUSES: tuple[Status, ...] = get_args(get_args(Status)[0])

RARE = 1000
"""A metadata filter that at most so many sessions match is answered from them; a commoner one from the sorted list."""

Select = Callable[[str, Sequence[Any]], Iterator[Any]]
"""Executes a statement with parameters; the rows are of one state of the database."""


def page(select: Select, query: ListQuery) -> ListPage:
    rare = _rare(select, query)
    found = _sorted(select, query) if rare is None else _among(select, rare, query)
    shown = (
        (meta, len(stored))
        for id_, stored, sum_ in found
        if (meta := readable(id_, stored, sum_)) is not None and matches(query.metadata, meta.metadata)
    )
    limit = query.limit + 1
    metas = take(shown, limit, query.max_bytes)
    full = len(metas) == limit
    if full:
        metas.pop()
    return ListPage(tuple(metas), full or (len(metas) > 0 and next(shown, None) is not None))


def readable(session_id: str, stored: bytes, sum_: int | None) -> SessionMeta | None:
    """A record for a list, which leaves out one that is damaged rather than fail for all the others."""
    try:
        return rows.meta(session_id, stored, sum_)
    except StorageError:
        log.warning("session record left out of a list: it is damaged", session_id=session_id)
        return None


def _rare(select: Select, query: ListQuery) -> bytes | None:
    """The digest of the label that fewest sessions have, if few enough."""
    rarest: tuple[int, bytes] | None = None
    for key, value in (query.metadata or {}).items():
        label = digest(key, value)
        statement = "SELECT count(*) FROM (SELECT 1 FROM label WHERE digest = ? LIMIT ?)"
        ((count,),) = select(statement, (label, RARE + 1))
        if rarest is None or count < rarest[0]:
            rarest = (count, label)
    return rarest[1] if rarest is not None and rarest[0] <= RARE else None


def _sorted(select: Select, query: ListQuery) -> Iterator[Any]:
    """Rows in order: SQLite merges the ranges of the statuses, each from an index that has that order."""
    where, parameters = _terms(query)
    labels = [digest(key, value) for key, value in (query.metadata or {}).items()]
    where += ["EXISTS (SELECT 1 FROM label WHERE label.digest = ? AND label.session = session.num)" for _ in labels]
    statuses = STATUSES if query.status is None else (query.status,)
    terms = " AND ".join(where)
    ranges = (
        f"SELECT {_key(query.order)}, id, meta, sum FROM session WHERE status = '{status}' AND {terms}"  # noqa: S608 # fixed texts
        for status in statuses
    )
    direction = _direction(query.order)
    found = select(
        f"{' UNION ALL '.join(ranges)} ORDER BY 1 {direction}, 2 {direction}",
        (*parameters, *labels) * len(statuses),
    )
    return map(itemgetter(1, 2, 3), found)


def _among(select: Select, label: bytes, query: ListQuery) -> Iterator[Any]:
    """Rows in order, sorted from those that have a rare label."""
    where, parameters = _terms(query)
    if query.status is not None:
        where.append("status = ?")
        parameters.append(query.status)
    direction = _direction(query.order)
    return select(
        "SELECT id, meta, sum FROM label CROSS JOIN session ON session.num = label.session"  # noqa: S608 # fixed texts
        f" WHERE label.digest = ? AND {' AND '.join(where)} ORDER BY {_key(query.order)} {direction}, id {direction}",
        (label, *parameters),
    )


def _terms(query: ListQuery) -> tuple[list[str], list[Any]]:
    where, parameters = ["status IS NOT NULL"], list[Any]()
    if query.after is not None:
        where.append(f"({_key(query.order)}, id) {'<' if query.order.descending else '>'} (?, ?)")
        parameters += query.after
    return where, parameters


def _key(order: Order) -> str:
    return "updated_at" if order is Order.UPDATED_DESC else "created_at"


def _direction(order: Order) -> str:
    return "DESC" if order.descending else "ASC"
