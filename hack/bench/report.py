"""From runs to figures: medians, ratios, and a table for people. Pure."""

from statistics import median
from typing import Any

from hack.bench.runner import Result, Run
from hack.bench.scenario import Contender

Json = dict[str, Any]


def document(results: list[Result], host: Json) -> Json:
    """Everything, for machines. Rates in pods/s, CPU in seconds of a whole run, writes per pod."""
    return {"host": host, "results": [_of_nodes(result) for result in results]}


def ratio(result: Result, contender: Contender) -> float:
    """The rate of muster over that of stock: the median over rounds, each with its own round's stock run."""
    stock = result.runs[Contender(contender.pods)]
    return median(s.seconds / m.seconds for s, m in zip(stock, result.runs[contender], strict=True))


def cpu_ratio(result: Result, contender: Contender) -> float:
    """CPU seconds of all components of stock over those of muster: what the ratio is where the cores are the limit.
    Much steadier than the rates on a machine that is busy with something else too."""
    stock = result.runs[Contender(contender.pods)]
    spent = [sum(_median_cpu(runs).values()) for runs in (stock, result.runs[contender])]
    return spent[0] / spent[1] if spent[1] else 0.0


def table(results: list[Result]) -> str:
    """Markdown. CPU is milliseconds per pod."""
    lines = [
        "| nodes | who | s | pods/s | ratio | CPU ratio | CPU ms/pod: API, etcd, scheduler, extender | writes/pod |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for contender, runs in result.runs.items():
            seconds = median(run.seconds for run in runs)
            spread = f"{min(run.seconds for run in runs):.1f}-{max(run.seconds for run in runs):.1f}"
            cpu = _median_cpu(runs)
            costs = ", ".join(f"{1000 * cpu.get(name, 0.0) / contender.pods:.2f}" for name in _COMPONENTS)
            lines.append(
                f"| {result.nodes} | {contender.name} | {seconds:.2f} ({spread}) | {contender.pods / seconds:.0f} "
                f"| {_ratios(result, contender)} | {costs} | {_writes_per_pod(contender, runs):.2f} |"
            )
    return "\n".join(lines)


_COMPONENTS = ("apiserver", "etcd", "scheduler", "extender")


def _of_nodes(result: Result) -> Json:
    return {
        "nodes": result.nodes,
        "contenders": [_of_contender(result, contender, runs) for contender, runs in result.runs.items()],
    }


def _of_contender(result: Result, contender: Contender, runs: list[Run]) -> Json:
    seconds = median(run.seconds for run in runs)
    found: Json = {
        "name": contender.name,
        "pods": contender.pods,
        "gangs": str(contender.shape) if contender.shape is not None else None,
        "seconds": round(seconds, 3),
        "pods_per_second": round(contender.pods / seconds, 1),
        "rounds_seconds": [round(run.seconds, 3) for run in runs],
        "cpu_seconds": _median_cpu(runs),
        "writes_per_pod": round(_writes_per_pod(contender, runs), 3),
        "writes": {kind: round(count / contender.pods, 3) for kind, count in sorted(runs[-1].writes.items())},
    }
    if contender.shape is not None:
        found["ratio_to_stock"] = round(ratio(result, contender), 3)
        found["cpu_ratio_to_stock"] = round(cpu_ratio(result, contender), 3)
        found["extender_cpu_seconds_before_release"] = median(run.cpu_before for run in runs)
    return found


def _ratios(result: Result, contender: Contender) -> str:
    if contender.shape is None:
        return "| "
    return f"{ratio(result, contender):.2f} | {cpu_ratio(result, contender):.2f}"


def _median_cpu(runs: list[Run]) -> dict[str, float]:
    return {name: round(median(run.cpu[name] for run in runs), 2) for name in runs[0].cpu}


def _writes_per_pod(contender: Contender, runs: list[Run]) -> float:
    return median(sum(run.writes.values()) for run in runs) / contender.pods
