"""Names of Queue objects."""

import hashlib
import re
from collections.abc import Sequence

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX = 5
_LONGEST = 63
_NOT_IN_NAMES = re.compile(r"[^a-z0-9-]")


def queue_name(path: Sequence[str]) -> str:
    """As in root-child-2-v5zxz: the path in lower case with "-" for "/", "_" and all that names may not have, then five
    characters that a hash of the path determines, so that no re-sync makes a second one (K15). A DNS label of at most
    63 characters; what is too long is cut in front, where paths are alike."""
    full = "/".join(path)
    number = int.from_bytes(hashlib.sha256(full.encode()).digest()[:8])
    suffix = ""
    for _ in range(_SUFFIX):
        number, digit = divmod(number, len(_ALPHABET))
        suffix += _ALPHABET[digit]
    base = _NOT_IN_NAMES.sub("-", full.lower()).strip("-")[-(_LONGEST - _SUFFIX - 1) :].strip("-")
    return f"{base}-{suffix}" if base else suffix
