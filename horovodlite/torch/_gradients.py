"""Reduces the gradients of a set of parameters while backward is still running.

Terms. A *slot* is one parameter's gradient; its *bucket* is the memory in which the data plane
reduces it, allocated by the runtime so that peers on this host reach it directly. A *unit* is what
is submitted as one operation: the slots of a group, small slots that share it, or one slot.

One step. Each backward pass accumulates into ``parameter.grad`` and then calls the slot's hook.
With the last pass of a step the gradient is *packed*: if ``parameter.grad`` is not in the bucket
already, it is copied there once and ``parameter.grad`` becomes a view of the bucket. (A large one
that nobody else refers to is not copied: the operation reads it where it is, and has it to itself.)
When all slots of a unit are packed, the unit starts. synchronize() packs what backward did not
reach, waits, and leaves the reduced gradients in ``parameter.grad``.

A parameter that this rank has not used takes part with zeros (or with the gradient left from an
earlier step), since other ranks may have used it. Whether anybody has is learnt from one more small
tensor, with a flag per slot, which is fused with the last gradients. If nobody has, the gradient is
left as it was: None stays None, as in a single process.

Weights. For an average over samples a rank's gradient counts as many times as it has samples: it is
multiplied by that weight when it is packed, and the result by (ranks / sum of all weights). Knowing
that sum costs one more small reduction, in steps in which some rank has a weight other than 1; one
more flag tells everybody. It is taken in float64, so that it is exact for numbers of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from horovodlite import _core
from horovodlite._session import current_session, session
from horovodlite.exceptions import HorovodInternalError
from horovodlite.process_sets import members
from horovodlite.torch._arguments import Average
from horovodlite.torch._buckets import Form, allocate
from horovodlite.torch._claims import Claim
from horovodlite.torch._hooks import Hook
from horovodlite.torch._overlap import OverlapWatch
from horovodlite.torch._slots import BucketCarrier, Carrier, Settings, Slot
from horovodlite.torch._units import Unit, share
from horovodlite.torch.ops import allreduce
from horovodlite.torch.sync_batch_norm import agree_on_modes


class GradientReducer(_core.calls.StepState):
    """Reduces the gradients of some parameters in every step. One per DistributedOptimizer."""

    def __init__(
        self,
        parameters: Sequence[tuple[str, torch.nn.Parameter]],
        groups: Sequence[Sequence[torch.nn.Parameter]],
        settings: Settings,
        passes_per_step: int,
    ) -> None:
        """Hooks on to the parameters that require gradients. Local.

        Args:
            parameters: Name and parameter, the same names in the same order on every rank.
            groups: Parameters whose gradients travel together.
            settings: How they travel.
            passes_per_step: Backward passes that are added up before a gradient is reduced.
        """
        self.settings = settings
        self.passes_per_step = passes_per_step
        self.synchronized = False  # since the last step, and no gradient has arrived since
        self.keeps_local = False  # inside no_sync()
        self._weight = 1.0  # how often this rank's gradients count in an average
        self._claim = Claim(self, parameters)
        settings.process_set.users.add(self)
        self._has_buckets = False
        self._slots: list[Slot] = []
        self._units: list[Unit] = []
        self._sharers: set[int] | None = None  # slots by number; None until a step has shown them
        self._shares_anew = False  # from the next step on
        self._agrees_anew = False  # likewise
        self._hooks: dict[int, torch.utils.hooks.RemovableHandle] = {}
        self._session: _core.Session | None = None  # the one that the buckets were made for
        self._is_alone = False
        self._ranks = 1
        self.watch: OverlapWatch | None = OverlapWatch()
        self._add(parameters, groups)
        self._begin_step()

    # --- which parameters -------------------------------------------------------------------------

    def _add(
        self,
        parameters: Sequence[tuple[str, torch.nn.Parameter]],
        groups: Sequence[Sequence[torch.nn.Parameter]] = (),
    ) -> None:
        """Makes slots and units. Gradients become ready roughly from the last parameter on."""
        slots = {}
        for name, parameter in reversed(parameters):
            slot = Slot(parameter, name, len(self._slots), self.settings)
            self._slots.append(slot)
            slots[id(parameter)] = slot
        grouped = [[slots.pop(id(parameter)) for parameter in group] for group in groups]
        self._units += [Unit(together, is_group=True) for together in grouped]
        self._units += [Unit([slot]) for slot in slots.values()]
        self._has_buckets = False
        self._hook_new_ones()

    def require_idle(self) -> None:
        """Raises RuntimeError when nothing can join: gradients in flight, or a newer optimizer."""
        self._claim.require_current()
        if self.in_flight:
            raise RuntimeError("parameters cannot be added between backward() and step()")

    def add_parameters(self, parameters: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        """Parameters that join later, between two steps. Local.

        Raises:
            RuntimeError: Gradients are being reduced, or a newer optimizer has the parameters.
            ValueError, NotImplementedError: One of them cannot be reduced; nothing has changed.
        """
        self.require_idle()
        self._claim.add(parameters)
        self._add(parameters)
        self._begin_step()

    def _hook_new_ones(self) -> None:
        """Hooks on to parameters that require gradients by now; frozen ones cannot have hooks."""
        for slot in self._slots if len(self._hooks) < len(self._slots) else ():
            if slot.number not in self._hooks and slot.parameter.requires_grad:
                register: Any = slot.parameter.register_post_accumulate_grad_hook
                self._hooks[slot.number] = register(Hook(self, slot))
                if slot.parameter.grad is not None:
                    slot.used = True  # nobody told: it was not backward() that put it there

    def be_replaced(self) -> None:
        """A newer optimizer has got some of the parameters."""
        self.drain()
        self.release()

    @property
    def label(self) -> str:
        """A name for what concerns all these parameters, unique in the session."""
        return (self._slots[-1].name if self._slots else "nothing") + self._claim.suffix

    def release(self) -> None:
        """Takes the hooks off."""
        for handle in self._hooks.values():
            handle.remove()
        self._hooks.clear()

    # --- memory -----------------------------------------------------------------------------------

    @property
    def _alone(self) -> bool:
        """Nobody to reduce with: a world or a process set of one, or a set of others."""
        return self._session is not None and self._is_alone

    def _join(self) -> None:
        """Makes buckets for the session that runs now, unless that has been done."""
        current = session()
        if current is self._session and self._has_buckets:
            return
        if self.in_flight:
            self._begin_step()
            raise HorovodInternalError(
                "The session or process set in which gradients were being reduced has ended, and "
                "their values are lost: call zero_grad() and backward() again.",
                code="Aborted",
            )
        self._claim.renew()
        self._session = current
        packed = self._part()
        ranks = members(self.settings.process_set)
        self._ranks = len(ranks)
        self._is_alone = len(ranks) == 1 or current.rank not in ranks
        self._has_buckets = True
        if not self._alone:
            for may_share in (False, True):  # memory of their own: they may move soon
                self._make_buckets([unit for unit in self._units if unit.may_share == may_share])
            self._make_flags()
            for slot in packed:
                self._unpacked += 1
                _core.calls.packed(self, slot)

    def _part(self) -> list[Slot]:
        """Every slot that is in no group travels alone, until the ranks have agreed.

        Returns:
            Those that were packed, and waited for the others of their units.
        """
        self._sharers, self._shares_anew, self._agrees_anew = None, False, False
        shared = [unit for unit in self._units if unit.is_shared]
        slots = [slot for unit in shared for slot in unit.slots]
        self._units = [unit for unit in self._units if not unit.is_shared]
        self._units += [Unit([slot]) for slot in slots]
        return [slot for slot in slots if slot.packed]

    def _share(self) -> None:
        """Small slots share units as has been agreed. Between two steps."""
        groups = [unit for unit in self._units if unit.is_group]
        grouped = {slot.number for unit in groups for slot in unit.slots}
        slots = [slot for slot in self._slots if slot.number not in grouped]
        old = {unit.slots: unit for unit in self._units}
        others = [
            old.get(tuple(together)) or Unit(together)
            for together in share(slots, self._sharers or ())
        ]
        self._make_buckets([unit for unit in others if unit.slots not in old])
        self._units = [*groups, *others]
        self._shares_anew = False

    def _learn(self) -> None:
        """After a step in which everything has succeeded, on all ranks: who shares from now on."""
        if not self.settings.shares:
            return
        ordinary = self._all_ordinary()
        if ordinary and self._sharers is not None:
            return
        flags = (self._flags[: len(self._slots)] * self._flag_scale).tolist()
        used = {number for number, count in enumerate(flags) if round(count) == self._ranks}
        sharers = used if self._sharers is None else self._sharers & used
        self._shares_anew |= sharers != (self._sharers or set())
        self._sharers = sharers

    def ranks_have_joined(self) -> None:
        """Each may have done another number of steps: sharing is agreed anew. Local."""
        self._agrees_anew = True
        self._has_buckets &= self.in_flight

    def _make_buckets(self, units: Sequence[Unit]) -> None:
        assert self._session is not None
        forms: list[Form] = []
        if self.settings.uses_buckets:
            for unit in units:
                for slot in unit.slots:
                    dtype, shape, stride = slot.form()
                    forms.append(Form(self.settings.bucket_dtype(dtype), shape, stride))
        buckets = allocate(self._session, forms)
        for unit in units:
            count = len(unit.slots)
            unit.set_buckets(self._session, buckets[:count], self._claim.suffix)
            buckets = buckets[count:]

    def _make_flags(self) -> None:
        """The flags are reduced like gradients, so that they are fused with them.

        First one per slot that says whether it is used (a quarter where the gradient is sparse),
        then one per slot that says whether it is left out, because it is frozen; then whether there
        are weights, and anything left out.
        """
        assert self._session is not None
        shape = torch.Size([2 * len(self._slots) + 2])
        bucket = allocate(self._session, [Form(torch.float32, shape, (1,))])[0]
        self._flags, self._flags_memory = bucket.tensor, bucket.memory
        name = f"{self.label}.used"
        self._flags_carrier = BucketCarrier(self._session, name, [bucket], self.settings)

    # --- one step ---------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        _core.calls.begin_step(self, self._units)
        self._flags_in_flight = False
        if self._agrees_anew:
            self._has_buckets = False
        elif self._shares_anew and self._has_buckets and self._session is current_session():
            self._share()

    def set_weight(self, weight: float) -> None:
        """How often this rank's gradients count in averages from now on. Local."""
        if any(slot.packed for slot in self._slots):
            raise RuntimeError(
                "set_weight() was called while gradients are being reduced: call it before the "
                "backward() whose gradients it is for"
            )
        self._weight = weight

    @property
    def weight(self) -> float:
        """What set_weight() has set."""
        return self._weight

    def accumulated(self, number: int, gradient: torch.Tensor | None) -> None:
        """A backward pass has added to a gradient. Called by its hook.

        Args:
            number: Which slot.
            gradient: The value that ``parameter.grad`` is about to get, in a compiled backward;
                None when it has it already.
        """
        self._join()
        slot = self._slots[number]
        if slot.packed or slot.passes >= self.passes_per_step:
            self._first = None  # of what backward has added to it, the user is told here
            raise AssertionError(
                f"The gradient of '{slot.name}' was computed {slot.passes + 1} times since the "
                f"last step(), but backward_passes_per_step is {self.passes_per_step}. Increase "
                "backward_passes_per_step to accumulate gradients locally, or call step() before "
                "the next backward(). Passes inside no_sync() have to come first."
            )
        slot.used = True
        self.synchronized = False
        if self.keeps_local:
            return
        slot.passes += 1
        if slot.passes == self.passes_per_step and not self._alone:
            self._ready(slot, gradient)

    def _ready(self, slot: Slot, computed: torch.Tensor | None = None) -> None:
        """Nothing more will be added to this gradient in this step."""
        # A compiled backward that adds to a gradient writes the sum into its old memory, but later.
        written_later = computed is not None and slot.in_bucket(slot.parameter.grad)
        if written_later or not slot.fits():
            self._make_buckets([slot.unit])
        slot.pack(computed, self._weight)
        _core.calls.packed(self, slot)

    def _send_flags(self) -> None:
        if self._flags_in_flight:
            return
        _core.calls.write_flags(self, self._slots, self._flags_memory)
        self._flags_carrier.start(wake=True)
        self._flags_in_flight = True

    @property
    def in_flight(self) -> bool:
        """Whether any gradient is being reduced."""
        return self._started > 0

    def drain(self) -> None:
        """Waits for what is in flight, throws the results away and begins a new step."""
        with suppress(Exception):  # nobody wants the results any more
            self._wait()
        self._restore_unused()
        self._begin_step()

    def _restore_unused(self) -> None:
        for slot in self._slots:
            if not slot.used:
                slot.restore()

    def _wait(self) -> None:
        """Waits for everything in flight. After a failure too, and then raises the first."""
        carriers: list[Carrier] = []
        if not _core.calls.wait_units(self._units):
            carriers += [unit.in_flight for unit in self._units if unit.in_flight is not None]
        if self._flags_in_flight:
            carriers.append(self._flags_carrier)
        errors = [error for error in map(_outcome, carriers) if error is not None]
        if errors:
            raise errors[0]
        if self._flags_in_flight:
            self._learn()

    def synchronize(self) -> None:
        """Leaves reduced gradients in all parameters and begins a new step.

        Collective; blocks without the GIL. Gradients that backward has not brought to the number of
        passes are reduced as they are.
        """
        self._claim.require_current()
        self._join()
        self._hook_new_ones()
        try:
            if self._slots and not self._alone:
                with torch.no_grad():
                    agree_on_modes()
                    self._finish()
        except Exception:
            self.drain()  # the next step begins afresh
            raise
        self._begin_step()
        self.synchronized = True
        if self.watch is not None and (self._alone or not self.watch.step()):
            self.watch = None

    def _finish(self) -> None:
        if self._unpacked:
            self._send_rest()
        self._send_flags()
        self._take_part_late()
        self._wait()
        self._require_untouched()
        factor = 1.0
        times_used: list[float] = []
        if not self._all_ordinary():
            self._require_alike()
            factor = self._weights_factor()
            times_used = self._flags.tolist()
        self._deliver(factor, times_used)

    def _require_untouched(self) -> None:
        """Raises when the user has written to gradients while they were being reduced.

        After the step has run on all ranks, so that it is complete where nothing is wrong.
        """
        first = self._first
        if first is None or first._version == self._first_version:
            return
        names = [slot.name for slot in self._slots if slot.parameter.grad is first]
        which = f"'{names[0]}'" if names else "a parameter"
        raise RuntimeError(
            f"The gradient of {which} was changed between backward() and step(), while it "
            "was being reduced: some ranks would get the change and others not. Cure: call "
            "optimizer.synchronize() before gradients are clipped or scaled, and step() inside "
            "'with optimizer.skip_synchronize():'. This step's gradients are lost: zero_grad()."
        )

    def _send_rest(self) -> None:
        """Packs what backward has not brought to the number of passes."""
        for slot in self._slots:
            if slot.packed or self._is_out(slot):
                continue
            if not slot.used and slot.is_brought():
                slot.used = True  # nobody told: it was not backward() that put it there
            elif not slot.used:
                slot.save_stale()
            self._ready(slot)
        for unit in self._units:
            if unit.is_shared and unit.in_flight is None and any(s.packed for s in unit.slots):
                self._start_without_the_rest(unit)

    def _deliver(self, factor: float, times_used: Sequence[float]) -> None:
        """Leaves what has been reduced, times a factor, in the parameters.

        Args:
            factor: Other than 1 where there are weights.
            times_used: By slot, 0 if no rank has used it; empty if all have used all.
        """
        for unit in _core.calls.undelivered(self._units) if factor == 1.0 else self._units:
            if unit.in_flight is None:
                continue
            for slot in unit.slots:
                if slot.used or times_used[slot.number]:
                    unit.in_flight.deliver(slot, factor)
                else:
                    slot.restore()

    def _all_ordinary(self) -> bool:
        """Whether all ranks have used all parameters, with dense gradients and no weights."""
        count = len(self._slots)
        return _core.calls.all_ordinary(self._flags_memory, count, self._ranks, self._flag_scale)

    @property
    def _flag_scale(self) -> int:
        """What makes a reduced flag the number of ranks that have set it."""
        return self._ranks if self.settings.op == Average else 1

    def _weights_factor(self) -> float:
        """What averages are multiplied by because of weights: 1 / mean weight. Collective."""
        if not self._flags[-2].item():
            return 1.0
        weight = torch.tensor(self._weight, dtype=torch.float64)
        mean = allreduce(
            weight,
            name=f"{self.label}.weight",
            op=Average,
            process_set=self.settings.process_set,
        ).item()
        return 1.0 / mean if mean else 1.0  # nobody has samples: the gradients are zeros

    def _take_part_late(self) -> None:
        """Sends what is frozen here and not on some other rank, which would wait for it for ever.

        What comes back is of no use: _require_alike() raises then, on all ranks.
        """
        if not self._unpacked or _outcome(self._flags_carrier) is not None:
            return
        for slot in self._frozen_somewhere():
            if slot.unit.is_shared and slot.unit.in_flight is None:
                self._start_without_the_rest(slot.unit)
            elif not slot.unit.is_shared and not slot.packed:
                slot.save_stale()
                self._ready(slot)

    def _start_without_the_rest(self, unit: Unit) -> None:
        if not all(slot.fits() for slot in unit.slots):
            self._make_buckets([unit])
        unit.start_without_the_rest()
        self._started += 1

    def _frozen_somewhere(self) -> list[Slot]:
        """The parameters that some ranks have left out and others not, from the flags."""
        counts = (self._flags[len(self._slots) : -2] * self._flag_scale).round().tolist()
        return [slot for slot, count in zip(self._slots, counts) if 0 < count < self._ranks]

    def _require_alike(self) -> None:
        """Raises on all ranks when some have frozen what others train."""
        if not self._flags[-1].item():
            return
        frozen = self._frozen_somewhere()
        if not frozen:
            return
        names = ", ".join(sorted(f"'{slot.name}'" for slot in frozen))
        raise HorovodInternalError(
            f"Parameters are frozen on some ranks and not on others: {names}. Cure: set "
            "requires_grad alike on all ranks.",
            code="Mismatch",
        )

    def process_set_ended(self) -> None:
        """The process set has been unregistered: if it comes again, it is another one. Local."""
        self._has_buckets = False

    def _is_out(self, slot: Slot) -> bool:
        """A frozen parameter takes part only if its group cannot travel without it."""
        frozen = not slot.parameter.requires_grad and not slot.used
        return frozen and (slot.unit.is_shared or len(slot.unit.slots) == 1)

    def discard(self) -> None:
        """The accumulated gradients are being thrown away, and so is the count of their passes.

        Raises:
            AssertionError: They are being reduced at this moment.
        """
        current = self._session
        if self.in_flight and current is current_session() and current and current.healthy:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(). This is prohibited as it can cause a "
                "race condition."
            )
        self._begin_step()
        self.synchronized = False


def _outcome(carrier: Carrier) -> Exception | None:
    """Waits for one operation; what went wrong."""
    try:
        carrier.wait()
    except Exception as error:
        return error
    return None
