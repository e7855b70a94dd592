"""Trigger types, their providers, and the bindings they serve.

A binding is live (its provider was told) or parked: accepted, shown to nobody, and delivered when its type comes. A
provider that registers a type, again or for the first time, is told all its bindings anew, in any order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from session_manager.dev import frames
from session_manager.dev.registry import Connection, Key
from session_manager.dev.unkind import Disorder

ACK_TIMEOUT_S = 10.0


class Rejected(Exception):
    """A provider refused a binding."""


@dataclass(frozen=True)
class Binding:
    """A function bound to a trigger type."""

    id: str
    trigger_type: str
    function_id: str
    config: Any
    metadata: Any = None
    #: Whose connection it dies with; None for one made by `engine::register_trigger`.
    owner: Connection | None = None
    #: Where the function is.
    namespace: str = frames.DEFAULT_NAMESPACE
    #: Where the provider must be, if the binder said so.
    trigger_namespace: str | None = None
    #: Where a provider is looked for first otherwise.
    home: str = frames.DEFAULT_NAMESPACE
    #: Where the provider was found.
    provider_namespace: str = frames.DEFAULT_NAMESPACE

    @property
    def provider(self) -> Key:
        return self.provider_namespace, self.trigger_type


class Local(Protocol):
    """A provider inside the engine."""

    def bind(self, binding: Binding) -> None:
        """Serve a binding; raises Rejected."""

    def unbind(self, binding: Binding) -> None:
        """Serve it no longer."""


@dataclass(frozen=True)
class TriggerType:
    """A kind of event somebody provides."""

    id: str
    namespace: str
    description: str
    provider: Connection | Local
    request_format: Any = None
    call_format: Any = None

    @property
    def owner(self) -> Connection | None:
        return self.provider if isinstance(self.provider, Connection) else None


class Bindings:
    """All trigger types and bindings of an engine."""

    def __init__(self, disorder: Disorder) -> None:
        self.types: dict[Key, TriggerType] = {}
        self.live: dict[str, Binding] = {}
        self.parked: dict[str, Binding] = {}
        self._disorder = disorder

    def matching(self, accept: Callable[[Binding], bool]) -> Iterator[Binding]:
        return (binding for binding in list(self.live.values()) if accept(binding))

    # --- types ---

    def register_type(self, trigger_type: TriggerType) -> None:
        """Add a type or take it over, its bindings with it; the former provider is not told."""
        key = trigger_type.namespace, trigger_type.id
        self.types[key] = trigger_type
        for binding in self._disorder.shuffled(self.matching(lambda known: known.provider == key)):
            self._replay(trigger_type, binding)
        for binding in self._disorder.shuffled(self.parked.values()):
            if binding.trigger_type == trigger_type.id and self._resolve(binding) == key:
                del self.parked[binding.id]
                self._replay(trigger_type, replace(binding, provider_namespace=key[0]))
        if trigger_type.namespace != frames.DEFAULT_NAMESPACE:
            self._bring_home(trigger_type)

    def _bring_home(self, trigger_type: TriggerType) -> None:
        """Take over the bindings that settled for the provider in `default` while home had none."""
        settled = self.matching(
            lambda known: (
                known.trigger_type == trigger_type.id
                and known.home == trigger_type.namespace
                and known.trigger_namespace is None
                and known.provider_namespace != known.home
            )
        )
        for binding in self._disorder.shuffled(settled):
            self._tell_unbound(binding)
            self._replay(trigger_type, replace(binding, provider_namespace=trigger_type.namespace))

    # --- bindings ---

    def bind(self, binding: Binding) -> None:
        """Accept a binding that lives with its owner's connection; raises Rejected only for the engine's own types."""
        trigger_type = self._provider_of(binding)
        if trigger_type is None:
            self.parked[binding.id] = binding
            return
        self._tell_bound(trigger_type, replace(binding, provider_namespace=trigger_type.namespace))
        self._settle(binding, trigger_type)

    async def bind_for_good(self, binding: Binding) -> None:
        """Accept a binding nobody owns, after its provider's word; raises Rejected.

        A provider that says nothing for ten seconds has accepted. An unknown type is no fault.
        """
        trigger_type = self._provider_of(binding)
        if trigger_type is None:
            self.parked[binding.id] = binding
            return
        owner = trigger_type.owner
        if owner is None:
            self.bind(binding)
            return
        answer = owner.acks[binding.id] = asyncio.get_running_loop().create_future()
        try:
            self._tell_bound(trigger_type, replace(binding, provider_namespace=trigger_type.namespace))
            error = await asyncio.wait_for(answer, ACK_TIMEOUT_S)
        except TimeoutError:
            error = None
        finally:
            owner.acks.pop(binding.id, None)
        if error is not None:
            raise Rejected(f"{error.code}: {error.message}")
        if owner.alive:
            self._settle(binding, trigger_type)
        else:
            self.bind(binding)

    def unbind(self, binding_id: str) -> bool:
        """Remove anybody's binding; False when there is none."""
        binding = self.live.get(binding_id)
        if binding is None:
            return self.parked.pop(binding_id, None) is not None
        self._tell_unbound(binding)
        self.live.pop(binding_id, None)
        self.parked.pop(binding_id, None)
        return True

    def acknowledge(self, provider: Connection, answer: frames.TriggerRegistrationResult) -> Binding | None:
        """Take a provider's word on a binding. A rejection parks it and returns it, for its owner to be told."""
        waiting = provider.acks.pop(answer.id, None)
        if waiting is not None:
            if not waiting.done():
                waiting.set_result(answer.error)
            return None
        binding = self.live.get(answer.id)
        if binding is None or answer.error is None:
            return None
        trigger_type = self.types.get(binding.provider)
        if trigger_type is None or trigger_type.owner is not provider:
            return None
        self.parked[binding.id] = self.live.pop(binding.id)
        return binding

    def remove(self, connection: Connection) -> None:
        """Forget a closed connection's bindings and types; bindings of others that it served move on or are parked."""
        for binding in self._disorder.shuffled(self.matching(lambda known: known.owner is connection)):
            del self.live[binding.id]
            self._tell_unbound(binding)
        for binding in [known for known in self.parked.values() if known.owner is connection]:
            del self.parked[binding.id]
        for key in [key for key, known in self.types.items() if known.provider is connection]:
            del self.types[key]
            for binding in self._disorder.shuffled(self.matching(lambda known, key=key: known.provider == key)):  # type: ignore[misc]
                del self.live[binding.id]
                trigger_type = self._provider_of(binding)
                if trigger_type is None:
                    self.parked[binding.id] = binding
                else:
                    self._replay(trigger_type, replace(binding, provider_namespace=trigger_type.namespace))
        for answer in connection.acks.values():
            if not answer.done():
                answer.set_result(None)

    # --- helpers ---

    def _resolve(self, binding: Binding) -> Key | None:
        """Where the provider of a binding is: in the namespace it names, else at home, else in `default`."""
        if binding.trigger_namespace is not None:
            places = [binding.trigger_namespace]
        else:
            places = [binding.home, frames.DEFAULT_NAMESPACE]
        keys = ((place, binding.trigger_type) for place in places)
        return next((key for key in keys if key in self.types), None)

    def _provider_of(self, binding: Binding) -> TriggerType | None:
        key = self._resolve(binding)
        return None if key is None else self.types[key]

    def _settle(self, binding: Binding, trigger_type: TriggerType) -> None:
        self.parked.pop(binding.id, None)
        self.live[binding.id] = replace(binding, provider_namespace=trigger_type.namespace)

    def _replay(self, trigger_type: TriggerType, binding: Binding) -> None:
        try:
            self._tell_bound(trigger_type, binding)
        except Rejected:
            self.live.pop(binding.id, None)
            self.parked[binding.id] = binding
        else:
            self._settle(binding, trigger_type)

    def _tell_bound(self, trigger_type: TriggerType, binding: Binding) -> None:
        if not isinstance(trigger_type.provider, Connection):
            trigger_type.provider.bind(binding)
            return
        trigger_type.provider.send(
            frames.RegisterTrigger(
                id=binding.id,
                trigger_type=binding.trigger_type,
                function_id=binding.function_id,
                config=binding.config,
                metadata=binding.metadata,
                namespace=_unless_default(binding.namespace),
                trigger_namespace=_unless_default(binding.provider_namespace),
            )
        )

    def _tell_unbound(self, binding: Binding) -> None:
        trigger_type = self.types.get(binding.provider)
        if trigger_type is None:
            return
        if not isinstance(trigger_type.provider, Connection):
            trigger_type.provider.unbind(binding)
            return
        trigger_type.provider.send(frames.UnregisterTrigger(id=binding.id, trigger_type=binding.trigger_type))


def _unless_default(namespace: str) -> str | None:
    return None if namespace == frames.DEFAULT_NAMESPACE else namespace
