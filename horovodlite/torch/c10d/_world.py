"""From torch.distributed's world to the session, and from its groups to process sets."""

from __future__ import annotations

import atexit
import functools
import hashlib
import uuid
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch.distributed as dist
import torch.distributed.distributed_c10d as _c10d

from horovodlite import _core, world
from horovodlite._environment import env, environment_with
from horovodlite._session import current_session
from horovodlite.process_sets import add_process_set, registered
from horovodlite.torch.c10d._group import ProcessGroup
from horovodlite.torch.c10d._identity import NAME
from horovodlite.torch.c10d._lane import CoreLane
from horovodlite.torch.c10d._pairs import PairLane

c10d: Any = _c10d  # much of it has no types
stores: Any = dist
_WORLD_SET = 0
_MOST_SECONDS = 86400.0
_EXIT_SECONDS = 5.0  # for what others have not yet received from a process that exits


class _Owned:
    """What this module has made."""

    # Started by init_process_group(), and ends with the world.
    session: _core.Session | None = None
    # How often a session has had a group of a name.
    names: ClassVar[Counter[tuple[int, str]]] = Counter()
    groups: ClassVar[weakref.WeakSet[ProcessGroup]] = weakref.WeakSet()


def session_of(store: Any, rank: int, size: int, timeout: timedelta) -> _core.Session:
    """The session of this process; one is started if there is none. Collective then.

    Raises:
        ValueError: The session, or hvlrun, says that the world is another one.
        HorovodInternalError: Some rank did not come.
    """
    session = current_session()
    if session is None:
        around = environment_with({})
        launched = "HVL_STORE" in around
        with env(**({} if launched else _place(around, store, rank, size, timeout))):
            world.init()
        session = _Owned.session = current_session()
        assert session is not None
    if (session.rank, session.size) == (rank, size):
        return session
    found = f"rank {session.rank} of {session.size}"
    if _Owned.session is session:
        leave(session)
    raise ValueError(
        f"this process is rank {rank} of {size} for torch.distributed, but {found} for "
        "horovodlite (hvd.init(), hvlrun): both need the same ranks. Pass the same rank and "
        "world_size to init_process_group(), or leave them out"
    )


def _place(
    around: Mapping[str, str], store: Any, rank: int, size: int, timeout: timedelta
) -> dict[str, str]:
    """The variables that tell horovodlite what torch.distributed knows."""
    if rank == 0:
        store.set("horovodlite/job", uuid.uuid4().hex)
    values = {
        "HVL_RANK": str(rank),
        "HVL_SIZE": str(size),
        "HVL_JOB_ID": store.get("horovodlite/job").decode(),
        **_host(around, rank, size),
        **_head(around, store),
    }
    if "HVL_START_TIMEOUT" not in around:
        values["HVL_START_TIMEOUT"] = str(min(timeout.total_seconds(), _MOST_SECONDS))
    return values


def _host(around: Mapping[str, str], rank: int, size: int) -> dict[str, str]:
    """Which ranks are on this host, where torchrun has said so."""
    told = [around.get(name) for name in ("RANK", "WORLD_SIZE")]
    local = [around.get(name) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    if told != [str(rank), str(size)] or local[0] is None or local[1] is None:
        return {}
    return {"HVL_LOCAL_RANK": local[0], "HVL_LOCAL_SIZE": local[1]}


def _head(around: Mapping[str, str], store: Any) -> dict[str, str]:
    """Where rank 0 is, for ranks of several hosts, as far as the store knows."""
    while isinstance(store, stores.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, stores.TCPStore) or "MASTER_ADDR" in around:
        return {}
    return {"MASTER_ADDR": store.host, "MASTER_PORT": str(store.port)}


def leave(session: _core.Session) -> None:
    """Ends a session that init_process_group() has started; does nothing to another one."""
    if _Owned.session is session:
        _Owned.session = None
        if current_session() is session:
            world.shutdown()


def create(options: Any, _: Any) -> ProcessGroup:
    """What torch.distributed calls on the members of a new group.

    Raises:
        As session_of().
    """
    default = dist.group.WORLD
    ranks = list(options.global_ranks_in_group)
    is_world = default is None
    if is_world:
        ranks = list(range(options.group_size))
        session = session_of(options.store, options.group_rank, options.group_size, options.timeout)
    else:
        session = _session_of_world()
    group = ProcessGroup(
        session,
        _lane(session, ranks),
        ranks,
        options.group_rank,
        _prefix(session, options.group_id, ranks),
        options.timeout.total_seconds(),
        options.store,
    )
    if is_world:
        group.at_end(lambda: leave(session))
    _Owned.groups.add(group)
    return group


@atexit.register  # before horovodlite's own, which ends the session
def _drain() -> None:
    for group in list(_Owned.groups):
        group.drain(_EXIT_SECONDS)


def _prefix(session: _core.Session, name: str, ranks: Sequence[int]) -> str:
    """Of the names of a group's operations: no other group of its ranks has it in this session.

    torch counts groups that all ranks make. The names of those that only members make depend on how
    many groups a rank is in; so they are named by their ranks here.
    """
    if not name.isdigit():
        name = hashlib.sha1(repr(list(ranks)).encode(), usedforsecurity=False).hexdigest()[:8]
    key = session.generation, name
    _Owned.names[key] += 1
    times = _Owned.names[key]
    return f"c10d.{name}" if times == 1 else f"c10d.{name}+{times - 1}"


def _session_of_world() -> _core.Session:
    session = current_session()
    if session is None:
        raise RuntimeError(
            f"a group of backend {NAME!r} needs the session of the whole world: call "
            f"init_process_group({NAME!r}) or hvd.init() before new_group()"
        )
    return session


def _lane(session: _core.Session, ranks: Sequence[int]) -> CoreLane:
    """The fastest way on which these ranks can meet."""
    if len(ranks) == session.size:
        return CoreLane(session, _WORLD_SET, ranks)
    if len(ranks) == 2:  # two ranks always have a set
        return CoreLane(session, _core.pair_set(min(ranks), max(ranks)), ranks)
    process_set = registered(ranks)
    if process_set is not None and process_set.process_set_id is not None:
        return CoreLane(session, process_set.process_set_id, ranks)
    return PairLane(session, ranks)


def _register(ranks: Sequence[int] | None) -> None:
    """Makes a process set of the ranks of a new group. Collective over the world."""
    session = _session_of_world()
    if ranks is None or not 2 < len(set(ranks)) < session.size:
        return
    in_world = all(isinstance(rank, int) and 0 <= rank < session.size for rank in ranks)
    if in_world and len(set(ranks)) == len(ranks) and registered(ranks) is None:
        add_process_set(list(ranks))


def announce_groups() -> None:
    """From now on all ranks make a process set when they call new_group(), also who is no member.

    torch.distributed tells a backend of a group on its members only, and a process set needs all
    ranks. Where they do not call it (use_local_synchronization), there is none, and the members of
    a group of three or more meet in pairs.
    """
    original = c10d._new_group_with_tag

    @functools.wraps(original)
    def new_group_with_tag(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *more: Any, **named: Any
    ) -> Any:
        default = dist.group.WORLD
        wanted = backend or (c10d._world.pg_map[default][0] if default is not None else "")
        ours = NAME in str(wanted).lower()
        if ours and not named.get("use_local_synchronization"):
            if current_session() is None:  # below a world of another backend
                _, store = c10d._world.pg_map[default]
                limit = timeout or c10d.default_pg_timeout
                session_of(store, dist.get_rank(), dist.get_world_size(), limit)
            _register(ranks)
        return original(ranks, timeout, backend, *more, **named)

    c10d._new_group_with_tag = new_group_with_tag
