"""Readings: CPU time of processes, writes that the API server counted, the machine."""

import os
import platform
import re
from collections import Counter
from pathlib import Path

_WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE"})
_SERIES = re.compile(r"^apiserver_request_total\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def cpu_seconds(pid: int) -> float:
    """User and system time so far of a process and the children it has waited for; 0 when there is no such process
    (Linux, proc(5))."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def writes(exposition: str) -> Counter[str]:
    """`POST pods/binding` -> requests so far, from the API server's metrics."""
    found: Counter[str] = Counter()
    for series in _SERIES.finditer(exposition):
        labels = dict(_LABEL.findall(series["labels"]))
        if labels["verb"] in _WRITES:
            target = f"{labels['resource']}/{labels['subresource']}".rstrip("/")
            found[f"{labels['verb']} {target}"] += round(float(series["value"]))
    return found


def host() -> dict[str, str | int | float]:
    """What the figures were taken on; the load as it was before the first round."""
    info: dict[str, str | int | float] = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "cores": os.cpu_count() or 0,
        "load1": round(os.getloadavg()[0], 2),
    }
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            info["cpu"] = line.partition(":")[2].strip()
            break
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal"):
            info["memory_gib"] = round(int(line.split()[1]) / (1 << 20), 1)
            break
    return info


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
