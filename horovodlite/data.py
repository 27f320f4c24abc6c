"""Loading batches in a thread while the last one is trained on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]


class BaseDataLoader:
    """What a data loader of Horovod's kind is: subclasses say how many batches, and which.

    Source: ``horovod.data.BaseDataLoader``.
    """

    def __len__(self) -> int:
        """How many batches there are."""
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """The batches of one epoch, as they are loaded."""
        raise NotImplementedError

    def _process_batch(self, batch: Any) -> Any:
        """What a batch is made into before training gets it, in training's thread."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch."""
        for batch in self._iterate():
            yield self._process_batch(batch)


class _Loaded:
    """A batch, whatever it is."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _End:
    """After the last batch of an epoch, with what ended it early, if anything has."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


class AsyncDataLoaderMixin:
    """Put before a BaseDataLoader, loads its batches in a thread of its own.

    Each epoch has a thread; it ends with the epoch, when the iteration is given up, or by
    close_async_loader(). An exception of the loader is raised where the batches are used.

    Args:
        async_loader_queue_size: Batches that are loaded ahead at most; 0 loads without a thread.
        debug_data_loader: Changes nothing.
        args: For the loader.
        kwargs: For the loader.

    Source: ``horovod.data.AsyncDataLoaderMixin``, where the thread is one for all epochs and loads
    the next one before it is asked for.

    Example:
        >>> class Numbers(BaseDataLoader):
        ...     def __len__(self):
        ...         return 3
        ...     def _iterate(self):
        ...         yield from range(3)
        >>> class AsyncNumbers(AsyncDataLoaderMixin, Numbers):
        ...     pass
        >>> list(AsyncNumbers(async_loader_queue_size=2))
        [0, 1, 2]
    """

    def __init__(
        self,
        async_loader_queue_size: int = 64,
        debug_data_loader: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._stops: list[threading.Event] = []
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """Ends the epochs that are being loaded. Local; does not block."""
        for stop in list(self._stops):
            stop.set()

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch."""
        loader: Any = self
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        batches: queue.Queue[_Loaded | _End] = queue.Queue(self.async_loader_queue_size)
        stop = threading.Event()
        self._stops.append(stop)
        thread = threading.Thread(target=_load, args=(loader, batches, stop), daemon=True)
        thread.start()
        item = None
        try:
            item = batches.get()
            while isinstance(item, _Loaded):
                yield loader._process_batch(item.value)
                item = batches.get()
        finally:
            stop.set()
            self._stops.remove(stop)
            while not isinstance(item, _End):  # the thread may wait for room
                item = batches.get()
            thread.join()
        if item.error is not None:
            raise item.error


def _load(loader: Any, batches: queue.Queue[_Loaded | _End], stop: threading.Event) -> None:
    """The thread's work: puts batches into the queue until the epoch ends or nobody wants them."""
    end = _End()
    try:
        for batch in loader._iterate():
            if stop.is_set():
                break
            batches.put(_Loaded(batch))
    except Exception as error:
        end = _End(error)
    batches.put(end)
