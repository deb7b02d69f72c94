"""What the figures `iter-p` and `different-p` claim, and whether it holds."""

from __future__ import annotations

from collections.abc import Iterator

from pisco.experiments.paper.study import ACCURACY, TRAINING, Cell, Study, cell_of, larger_step
from pisco.experiments.paper.verdict import Verdict, up_to
from pisco.statistics import Estimate

TRAINING_TARGET, ACCURACY_TARGET = 0.05, 0.8
TARGETS = {TRAINING: TRAINING_TARGET, ACCURACY: ACCURACY_TARGET}
FORMS = {
    "FDLA, two exchanges (the paper's)": ("fdla", False),
    "Metropolis, two exchanges": ("metropolis", False),
    "FDLA, one exchange": ("fdla", True),
}
PAPERS_FORM = next(iter(FORMS))
SAME_STEP = 0.01
"""Run for both T_o at p = 0.1, whatever is tuned."""

PROTOCOLS = {"tuned": "η_l tuned for every p", "common": "one common η_l"}
WHAT = {TRAINING: "training target", ACCURACY: "80% accuracy"}


def _cases(form: str) -> Iterator[tuple[str, str, float, str]]:
    """(protocol, column, target, words for the claim): what every claim is judged under."""
    for protocol, words in PROTOCOLS.items():
        for column, target in TARGETS.items():
            yield protocol, column, target, f"({WHAT[column]}; {form}; {words})"


def _missed(column: str, target: float, *cells: Cell) -> str:
    """Which of the cells missed the target, and with how many seeds."""
    counts = {cell.label: int(cell.to_target(column, target).missed.sum()) for cell in cells}
    told = [f"{count} of {len(cells[0].result.seeds)} at p = {label}" for label, count in counts.items() if count]
    return f"seeds that missed the target: {', '.join(told)}" if told else ""


def _why(*reasons: str) -> str:
    return "; ".join(reason for reason in reasons if reason)


def _like_every_round(claim: str, small: Cell, full: Cell, column: str, target: float) -> Verdict:
    """Whether a smaller p needs about as many rounds as p = 1."""
    ratio = small.to_target(column, target).over(full.to_target(column, target))
    return Verdict(
        claim,
        f"median rounds of p = {small.label} over those of p = 1 (holds up to 1.5)",
        str(ratio),
        up_to(ratio, 1.5, 2.5),
        _why(larger_step(full, small), _missed(column, target, small, full)),
        seeds=len(full.result.seeds),
    )


def judge_iter_p(found: Study, form: str = PAPERS_FORM) -> list[Verdict]:
    """Whether a few server rounds save most of the gossip, and whether more of them buy anything."""
    verdicts = []
    for protocol, column, target, where in _cases(form):
        cells = getattr(found, protocol)
        alone, few, half, full = (cell_of(cells, label) for label in ("0", "10^-1.25", "10^-0.5", "1"))
        gossip, without = (each.to_target(column, target, "gossip_rounds") for each in (few, alone))
        server, ratio = few.to_target(column, target, "server_rounds"), gossip.over(without)
        saved = Estimate(*(100 * (1 - each) for each in (ratio.value, ratio.high, ratio.low)))
        verdicts.append(
            Verdict(
                f"p = 10^-1.25 saves about 60% of the gossip rounds of p = 0 {where}",
                "share of the median gossip rounds saved (holds from 40%)",
                f"{saved.words('{:.3g}%'.format)}; {gossip.median} gossip and {server.median} server rounds, "
                f"p = 0 needs {without.median}",
                up_to(ratio, 0.6, 0.8),
                _why(_missed(column, target, few, alone), _why_saving(form, protocol)),
                seeds=len(found.seeds),
            )
        )
        claim = f"p above 0.1 buys no further rounds {where}"
        verdicts.append(_like_every_round(claim, half, full, column, target))
    return verdicts


def _why_saving(form: str, protocol: str) -> str:
    if protocol == "common":
        return "the step size that p = 0 needs, not mixing, then sets the pace for every p"
    return "" if form == PAPERS_FORM else "p = 0 takes large steps in this form and leaves little to save"


def judge_forms(found: dict[str, Study]) -> list[Verdict]:
    """Our finding: the paper's pairing of weights and exchanges is what makes p = 0 slow."""
    verdicts = []
    papers = cell_of(found[PAPERS_FORM].tuned, "0").to_target(TRAINING, TRAINING_TARGET)
    for form, each in found.items():
        if form == PAPERS_FORM:
            continue
        rounds = cell_of(each.tuned, "0").to_target(TRAINING, TRAINING_TARGET)
        verdicts.append(
            Verdict(
                f"not the paper's: p = 0 needs less than a third of the rounds with {form}",
                "median rounds of p = 0 to the training target, tuned, against those of the paper's form",
                f"{rounds.median} against {papers.median}",
                up_to(rounds.over(papers), 1 / 3, 2 / 3),
                "mixing the new gradients with FDLA's negative eigenvalues forbids large steps",
                seeds=len(each.seeds),
            )
        )
    return verdicts


def judge_different_p(one: Study, ten: Study, form: str = PAPERS_FORM) -> list[Verdict]:
    """Whether small p do as well as p = 1, and whether local steps halve the rounds, under both protocols."""
    verdicts = []
    for protocol, column, target, where in _cases(form):
        few, many = (cell_of(getattr(each, protocol), "0.1") for each in (one, ten))
        verdicts.append(_halves(few, many, column, target, where, "a larger T_o needs a smaller η_l"))
        for steps, small, each in ((1, few, one), (10, many, ten)):
            full = cell_of(getattr(each, protocol), "1")
            claim = f"p = 0.1 performs like p = 1 at T_o = {steps} {where}"
            verdicts.append(_like_every_round(claim, small, full, column, target))
    for column, target in TARGETS.items():
        few, many = (cell_of(each.fixed, "0.1") for each in (one, ten))
        where = f"({WHAT[column]}; {form}; one η_l for both T_o)"
        why = "at one small η_l a round with more local steps goes further"
        verdicts.append(_halves(few, many, column, target, where, why))
    return verdicts


def _halves(few: Cell, many: Cell, column: str, target: float, where: str, why: str) -> Verdict:
    """Whether ten local steps need half the rounds of one."""
    rounds = [cell.to_target(column, target) for cell in (many, few)]
    ratio = rounds[0].over(rounds[1])
    steps = f"at η_l = {many.local_lr:g} against {few.local_lr:g}" if many.local_lr != few.local_lr else ""
    return Verdict(
        f"T_o = 10 halves the rounds of T_o = 1 at p = 0.1 {where}",
        "median rounds of T_o = 10 over those of T_o = 1 (holds up to 0.6)",
        f"{ratio}: {rounds[0].median} against {rounds[1].median} {steps or f'at η_l = {many.local_lr:g}'}",
        up_to(ratio, 0.6, 0.85),
        _why(why, *(f"T_o = {n}: {m}" for n, c in ((10, many), (1, few)) if (m := _missed(column, target, c)))),
        seeds=len(few.result.seeds),
    )
