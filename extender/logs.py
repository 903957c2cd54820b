"""Log lines: a sentence, then key=value pairs, one line whatever is in them."""

import json
import logging
import sys
import time


def line(message: str, **fields: object) -> str:
    """`tls reloaded cert=/etc/muster/tls.crt`; values with anything but plain characters are JSON strings."""
    return " ".join([message, *(f"{key}={_value(value)}" for key, value in fields.items())])


def set_up(level: str) -> None:
    """Everything to stderr, UTC. Raises ValueError for a level that does not exist."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ level=%(levelname)s logger=%(name)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _value(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    plain = text.isascii() and text.isprintable() and text and not any(c in text for c in ' "=')
    return text if plain else json.dumps(text)
