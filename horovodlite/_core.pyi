"""Types of the compiled module. tests/py/unit compares this file with the module itself."""

from collections.abc import Sequence
from typing import Any, Final, TypedDict, TypeVar

from typing_extensions import Buffer

VERSION: Final[str]

DTYPES: Final[dict[str, int]]

ALLREDUCE: Final[int]
ALLGATHER: Final[int]
BROADCAST: Final[int]
BARRIER: Final[int]
REDUCESCATTER: Final[int]
ALLTOALL: Final[int]
JOIN: Final[int]

AVERAGE: Final[int]
SUM: Final[int]
ADASUM: Final[int]
MIN: Final[int]
MAX: Final[int]
PRODUCT: Final[int]

# Input address, output address (0 where the runtime allocates), a value of DTYPES, shape, layout.
_Class = TypeVar("_Class", bound=type)
_Tensor = tuple[int, int, int, tuple[int, ...], int]
# Memory, a value of DTYPES, shape, first dimension of each rank's part.
_Gathered = tuple[Memory, int, tuple[int, ...], tuple[int, ...]]

class _Knob(TypedDict):
    name: str
    alias: str
    flag: str
    type: str
    default: str
    allowed: str
    value: str
    must_agree: bool
    help: str

def pair_set(source: int, target: int) -> int: ...
def knobs() -> list[_Knob]: ...
def mpi_families() -> list[str]: ...
def mpi_threads_supported() -> bool: ...

class Memory(Buffer):
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class Handle:
    def done(self) -> bool: ...
    def wait(self) -> None: ...
    def wait_gathered(self) -> list[_Gathered]: ...

class Session:
    @staticmethod
    def create(ranks: Sequence[int] = []) -> Session: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def cross_rank(self) -> int: ...
    @property
    def cross_size(self) -> int: ...
    @property
    def data_plane(self) -> str: ...
    @property
    def generation(self) -> int: ...
    def submit(
        self,
        kind: int,
        name: str,
        tensors: list[_Tensor],
        reduce_op: int = 0,
        prescale: float = 1.0,
        postscale: float = 1.0,
        root_rank: int = 0,
        keep: object = None,
        process_set: int = 0,
        splits: Sequence[int] = [],
        site: str = "",
    ) -> Handle: ...
    def run(
        self,
        kind: int,
        name: str,
        tensors: list[_Tensor],
        reduce_op: int = 0,
        prescale: float = 1.0,
        postscale: float = 1.0,
        root_rank: int = 0,
        keep: object = None,
        process_set: int = 0,
        splits: Sequence[int] = [],
        site: str = "",
    ) -> list[_Gathered]: ...
    def add_process_set(self, ranks: Sequence[int]) -> int: ...
    def remove_process_set(self, process_set: int) -> None: ...
    def process_set_ranks(self, process_set: int) -> list[int]: ...
    @property
    def checks_sites(self) -> bool: ...
    @property
    def debug(self) -> bool: ...
    def allocate(self, nbytes: int) -> Memory: ...
    def shutdown(self) -> None: ...
    @property
    def healthy(self) -> bool: ...
    def counters(self) -> dict[str, int]: ...
    def start_timeline(self, path: str, mark_cycles: bool) -> None: ...
    def stop_timeline(self) -> None: ...

class Prepared:
    def __init__(
        self,
        session: Session,
        kind: int,
        name: str,
        tensors: list[_Tensor],
        reduce_op: int = 0,
        prescale: float = 1.0,
        postscale: float = 1.0,
        root_rank: int = 0,
        keep: object = None,
        process_set: int = 0,
    ) -> None: ...
    def start(self, wake: bool = True) -> None: ...
    def wait(self) -> None: ...

class calls:  # noqa: N801  (a module)
    """The hottest functions in one C call each, and the handles of all asynchronous ones."""

    class Number(int): ...

    class StepState:
        passes_per_step: int
        synchronized: bool
        keeps_local: bool
        watch: Any
        _first: Any
        _first_version: int
        _session: Session | None
        _unpacked: int
        _started: int
        _weight: float
        _has_buckets: bool
        _is_alone: bool

    class UnitState:
        slots: tuple[Any, ...]
        in_flight: Any
        _dense: Any
        _prepared: Prepared | None
        _unpacked: int

    class SlotState:
        parameter: Any
        unit: Any
        bucket: Any
        sparse: Any
        loose: Any
        nbytes: int
        passes: int
        used: bool
        packed: bool
        _view: Any
        _stale: Any
        _sparse_dims: int
        _shows: bool

    class HookState:
        @property
        def owner(self) -> Any: ...
        @property
        def slot(self) -> Any: ...

    @staticmethod
    def use(
        holder: type,
        tensor_type: type,
        parameter_type: type,
        empty_like: object,
        process_set_type: type,
        world: object,
        caller_site: object,
        is_compiling: object,
        with_gradient: object,
        memory_uses: object,
        mark_negative: object,
        /,
    ) -> None: ...
    @staticmethod
    def new_handle(operation: Handle, finish: object, /) -> calls.Number: ...
    @staticmethod
    def poll(handle: int, /) -> bool: ...
    @staticmethod
    def synchronize(handle: int, /) -> Any: ...
    @staticmethod
    def describe(tensor: object, /) -> _Tensor | None: ...
    @staticmethod
    def allreduce(
        tensor: object,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: object,
        in_place: bool,
        /,
    ) -> Any: ...
    @staticmethod
    def allreduce_async(
        tensor: object,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: object,
        in_place: bool,
        /,
    ) -> calls.Number | None: ...
    @staticmethod
    def grouped_allreduce(
        tensors: object,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: object,
        in_place: bool,
        /,
    ) -> Any: ...
    @staticmethod
    def grouped_allreduce_async(
        tensors: object,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: object,
        in_place: bool,
        /,
    ) -> calls.Number | None: ...
    @staticmethod
    def accumulated(step: StepState, slot: SlotState, /) -> bool: ...
    @staticmethod
    def packed(step: StepState, slot: SlotState, /) -> None: ...
    @staticmethod
    def bucket_made(slot: SlotState, /) -> None: ...
    @staticmethod
    def attach(hook: HookState, step: StepState, slot: SlotState, /) -> None: ...
    @staticmethod
    def call_in_c(hook_class: _Class, /) -> _Class: ...
    @staticmethod
    def write_flags(step: StepState, slots: list[Any], memory: Memory, /) -> None: ...
    @staticmethod
    def all_ordinary(memory: Memory, slots: int, ranks: int, scale: float, /) -> bool: ...
    @staticmethod
    def begin_step(step: StepState, units: Sequence[UnitState], /) -> None: ...
    @staticmethod
    def wait_units(units: Sequence[UnitState], /) -> bool: ...
    @staticmethod
    def undelivered(units: Sequence[UnitState], /) -> list[Any]: ...
