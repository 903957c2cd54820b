"""Runs named actions concurrently, each after those it waits for."""

import concurrent.futures
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    action: Callable[[], None]
    after: tuple[str, ...] = ()


def run(
    tasks: Mapping[str, Task],
    heartbeat: Callable[[list[str]], None],
    cancel: Callable[[], None] = lambda: None,
    heartbeat_seconds: float = 10.0,
) -> None:
    """Runs everything, or raises the first failure after what had begun has ended.

    Names in `after` that are not among the tasks are taken as done. `heartbeat` gets the names at work. `cancel` is
    called at the first failure and at Ctrl-C: it should make what is at work end soon.
    Raises ValueError on a cycle.
    """
    waiting = {name: {n for n in task.after if n in tasks} for name, task in tasks.items()}
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(4, len(tasks))) as pool:
        running: dict[concurrent.futures.Future[None], str] = {}
        failure: BaseException | None = None
        while waiting or running:
            if failure is None:
                for name in [n for n, needs in waiting.items() if not needs]:
                    del waiting[name]
                    running[pool.submit(tasks[name].action)] = name
            if not running:
                if failure is not None:
                    break
                raise ValueError(f"these wait for each other: {', '.join(sorted(waiting))}")
            try:
                done, _ = concurrent.futures.wait(running, heartbeat_seconds, concurrent.futures.FIRST_COMPLETED)
            except KeyboardInterrupt:
                cancel()
                raise
            if not done:
                heartbeat(sorted(running.values()))
            for future in done:
                name = running.pop(future)
                if (error := future.exception()) is not None and failure is None:
                    failure = error
                    cancel()
                for needs in waiting.values():
                    needs.discard(name)
    if failure is not None:
        raise failure
