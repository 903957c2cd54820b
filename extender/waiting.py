"""Waiting for whichever comes first."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first_of(*waits: Coroutine[Any, Any, Any] | None) -> None:
    """Returns once one of them has ended; the others are cancelled. Raises what the ended one raised."""
    tasks = [asyncio.ensure_future(wait) for wait in waits if wait is not None]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
