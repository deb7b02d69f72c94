"""What results show, in sentences that claim no more than the numbers do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pisco.costs import Prices
from pisco.metrics import AGENTS, TEST
from pisco.report.numbers import number, size, spread, writing
from pisco.report.plots import labels_of
from pisco.results import measured
from pisco.statistics import Estimate, Sample
from pisco.targets import Reached, Targets, reached

if TYPE_CHECKING:
    from pisco.results import Result


def paragraphs(results: Sequence[Result], targets: Targets, prices: Prices) -> list[str]:
    """One paragraph for a result alone; for several, how they compare and then one for each.

    >>> import pisco
    >>> problem = pisco.problems.quadratic([[[1.0]], [[1.0]]], [[0.0], [2.0]])
    >>> result = pisco.run(pisco.algorithms.dsgd(local_lr=0.1), problem, pisco.Network.path(2), rounds=50)
    >>> paragraphs([result], {"grad_norm_sq_mean": 0.1}, Prices())[0].split("; ")[0].split(". ")[1]
    'The loss at the mean of the agents fell from 1 to 0.5'
    """
    names = labels_of(results)
    told = [about_one(r, n, targets, prices) for r, n in zip(results, names, strict=True)]
    return told if len(results) == 1 else [about_all(results, names, targets, prices), *told]


def about_one(result: Result, name: str, targets: Targets, prices: Prices) -> str:
    """What was run, where it ended, what it took to reach the targets, and what the server carried."""
    sentences = [_what_ran(result, name), *_trouble(result), _loss(result)]
    for column, metric in measured([result]).items():
        if metric.of in (TEST, AGENTS) and metric.usual:
            ending = spread(result.final(column).astype(float), writing(metric))
            sentences.append(f"The {metric.title} ended at {ending}.")
    sentences += [_target(each, prices) for each in reached([result], targets)[0]]
    sentences += [_agreement(result), *_traffic(result, prices)]
    return " ".join(sentence for sentence in sentences if sentence)


def about_all(results: Sequence[Result], names: Sequence[str], targets: Targets, prices: Prices) -> str:
    """Who reached each target with the fewest rounds, bytes, price and seconds, and whether seeds leave that open."""
    sentences = [f"{len(results)} results are compared."]
    differing = differing_settings(results)
    if differing:
        shown = ", ".join(differing[:8]) + (" and others" if len(differing) > 8 else "")
        sentences.append(f"They differ in {shown}.")
    if len(differing) > 1:
        sentences.append("What sets them apart may come from any of these.")
    found = list(zip(names, reached(results, targets), strict=True))
    for column in targets:
        rows = [(name, each) for name, met in found for each in met if each.target.column == column]
        there = [(name, row) for name, row in rows if row.by_all]
        if not rows:
            continue
        words = rows[0][1].target
        if not there:
            sentences.append(f"No result reached {words} with every seed.")
            continue
        if len(there) == 1:
            sentences.append(f"Only {there[0][0]} reached {words} with every seed.")
            continue
        later = [(name, row) for name, row in there if row.rounds.any()]
        if not later:
            sentences.append(
                f"All began at {words}."
                if len(there) == len(rows)
                else f"{len(there)} of the {len(rows)} began at {words}."
            )
        elif len(later) == 1:
            sentences.append(f"All that reached {words} but {later[0][0]} began there.")
        else:
            sentences.append(f"To first reach {words}, {_ranking(later, prices)}.")
            begun = len(there) - len(later)
            if begun:
                verb = "are" if begun > 1 else "is"
                sentences.append(f"{begun} of the {len(rows)} began there and {verb} left out of that.")
        missing = len(rows) - len(there)
        if missing:
            sentences.append(
                f"{missing} of the {len(rows)} did not get there with every seed and {'are' if missing > 1 else 'is'} "
                "left out of that."
            )
    wild = [name for name, result in zip(names, results, strict=True) if result.diverged]
    if wild:
        sentences.append(f"{len(wild)} of them diverged.")
    return " ".join(sentences)


def _ranking(there: list[tuple[str, Reached]], prices: Prices) -> str:
    clauses = []
    for what, least, values, words in (
        ("rounds", "fewest", lambda row: row.rounds, number),
        ("bytes", "fewest", lambda row: row.bytes, size),
        ("price", "lowest", lambda row: row.price(prices), number),
        ("seconds", "fewest", lambda row: row.seconds, number),
    ):
        if not all(values(row).any() for _, row in there):
            continue
        ranked = sorted(there, key=lambda pair: float(np.median(values(pair[1]))))
        (first, a), (second, b) = ranked[:2]
        best, next_best = (Sample.of(values(row)).median for row in (a, b))
        if best.value == next_best.value:
            clauses.append(f"{first} and {second} needed the same {what} ({_range(best, words)})")
            continue
        clause = f"{first} took the {least} {what} ({_range(best, words)}), before {second} "
        clause += f"({_range(next_best, words)})"
        if min(len(a.rounds), len(b.rounds)) == 1:
            clause += ", on one seed, which may be chance"
        elif best.high >= next_best.low:
            clause += ", though their intervals overlap, so the order is not certain"
        clauses.append(clause)
    return "; ".join(clauses)


def _rounds(words: str) -> str:
    return f"{words} round" if words == "1" else f"{words} rounds"


def _range(found: Estimate, words: Callable[[float], str]) -> str:
    """Its words, for use within brackets."""
    return found.words(words).replace(" (", "; ").replace(")", "")


def _what_ran(result: Result, name: str) -> str:
    settings = result.settings
    method = settings.get("algorithm", {})
    method = method.get("name", "") if isinstance(method, dict) else str(method)
    config = settings.get("config") or {}
    method = config.get("algorithm", {}).get("name", method)  # the published name, not the update rule's
    network = str(settings.get("network", "")).removeprefix("Network(").removesuffix(")")
    seeds = "one seed" if len(result.seeds) == 1 else f"{len(result.seeds)} seeds"
    parts = [f"{name}: {method or 'a method'}"]
    parts += [f"trained {settings['problem']}"] if settings.get("problem") else []
    links = "a network with one-way links" if "one_way" in result.agents else "a network"
    parts += [f"over {links} ({network})"] if network else []
    return " ".join(parts) + f" for {_rounds(number(result.rounds))}, with {seeds}."


def _trouble(result: Result) -> list[str]:
    out = []
    if result.interrupted:
        out.append("The run was stopped early, so everything here is about a part of it.")
    if wild := result.diverged_seeds:
        which = ", ".join(f"seed {seed} from round {number(at)}" for seed, at in list(wild.items())[:5])
        out.append(
            f"It diverged ({which}); a smaller step size, other weights or more server rounds may keep it stable."
        )
    return out


def _loss(result: Result) -> str:
    if "loss" not in result.history:
        return ""
    loss = result.column("loss").astype(float)
    start, end = float(np.median(loss[:, 0])), loss[:, -1]
    if not np.isfinite(end).all():
        return "The loss left the finite numbers."
    change = float(np.median(end)) - start
    flat = abs(change) <= 0.005 * max(abs(start), 1e-12) or number(start) == number(start + change)
    verb = "stayed near" if flat else "fell from" if change < 0 else "rose from"
    middle = number(start) if flat else f"{number(start)} to {spread(end)}"
    sentence = f"The loss at the mean of the agents {verb} {middle}"
    tenth = loss.shape[1] // 10
    if tenth < 2 or change >= 0:
        return sentence + "."
    late = float(loss[:, -tenth:].mean() - loss[:, -2 * tenth : -tenth].mean()) / abs(change)
    if late < -0.01:
        return (
            sentence + f"; it was still falling at the end (the last tenth of the run brought {-late:.0%} of the way)."
        )
    if late > 0.01:
        return sentence + "; over the last tenth of the run it rose again."
    return sentence + "; over the last tenth of the run it hardly changed."


def _target(each: Reached, prices: Prices) -> str:
    target = each.target
    if not len(each.rounds):
        return f"It never reached {target} (the best was {writing(target.metric)(each.best)})."
    if each.by_all and not each.rounds.any():
        return f"It met {target} from the start."
    paid = each.paid(prices)
    sentence = f"It first reached {target} after {_rounds(paid['rounds'].words(number))}"
    if each.bytes.any():
        sentence += f" and {paid['bytes'].words(size)}, at a price of {paid['price'].words(number)}"
    if each.seconds.any():
        sentence += f", {paid['seconds'].words(number)} seconds by the clock"
    if not each.by_all:
        sentence += f", with {len(each.rounds)} of its {len(each.result.seeds)} seeds only"
    return sentence + "."


def _agreement(result: Result) -> str:
    if "consensus_error" not in result.history:
        return ""
    error = result.column("consensus_error").astype(float).mean(axis=0)
    if not np.isfinite(error).all() or not error.any():
        return ""
    at = int(error.argmax())
    where = number(float(result.column("round")[0, at]))
    return (
        f"The agents were furthest apart at round {where} (consensus error {number(float(error[at]))}) "
        f"and {number(float(error[-1]))} apart at the end."
    )


def _traffic(result: Result, prices: Prices) -> list[str]:
    needed = {"server_rounds", "bytes_server", "bytes_gossip", "messages_server", "messages_gossip"}
    if not needed <= result.history.keys() or not result.rounds:
        return []
    server, sent = result.final("server_rounds").astype(float), result.final("bytes_server").mean()
    total = float(sent + result.final("bytes_gossip").mean())
    if not total:
        return []
    paid = prices.server * result.final("messages_server").mean()
    price = prices.paid(result.final, result.history).mean()
    if not server.any():
        return [f"No round reached the server; {size(total)} went between agents."]
    share = f" and {paid / price:.0%} of the price" if price else ""
    return [
        f"{spread(server)} of the {number(result.rounds)} rounds reached the server and carried "
        f"{sent / total:.0%} of the {size(total)} sent{share} "
        f"(at {prices.server:g} a server message and {prices.gossip:g} a gossip message"
        f"{f', {prices.gradient:g} a gradient' if prices.gradient else ''})."
    ]


def settings_of(result: Result) -> dict[str, Any]:
    """What was run, flat: the whole configuration where there is one."""
    whole = result.settings.get("config") or result.settings
    flat: dict[str, Any] = {}
    for name, table in whole.items():
        if isinstance(table, dict):
            flat |= {f"{name}.{key}": value for key, value in table.items()}
        elif name not in ("name", "description"):
            flat[name] = table
    for name in ("run.seed", "run.seeds"):  # said by the seeds themselves
        flat.pop(name, None)
    return flat | {"seeds": ", ".join(map(str, result.seeds))}


def differing_settings(results: Sequence[Result]) -> list[str]:
    """The settings in which results differ, in order."""
    flats = [settings_of(result) for result in results]
    names = dict.fromkeys(name for flat in flats for name in flat)
    return [name for name in names if len({str(flat.get(name)) for flat in flats}) > 1]
