"""Uncertainty by resampling trajectories: replicates of a fit from its block sums, without another pass.

Blocks of whole episodes are drawn with replacement, and the sums of a replicate are the stored sums of its
blocks. Landmarks, basis, grid, kernels, ridges and conditioning points are those of the fit; a trend of the
reward is fitted again. What remains is a regression, the operators at the conditioning points, and a solution
that starts from the fitted coefficients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.special import chndtrix, ndtri, stdtrit

from kedrl_dask.engine.passes.conditioning_points import Conditioning
from kedrl_dask.engine.passes.separated_objective import BellmanObjective
from kedrl_dask.engine.plan.partition import even_ranges, in_groups
from kedrl_dask.engine.storage.cache import Cache
from kedrl_dask.estimator.fit.conditioning import file_conditioning
from kedrl_dask.estimator.fit.pipeline import Request, check_policy, design
from kedrl_dask.estimator.fit.problem import Around, Prepared
from kedrl_dask.estimator.fit.regression import RegressionSums, StoredBlocks, recalibrate, regress
from kedrl_dask.estimator.fit.streaming import stream
from kedrl_dask.estimator.fitted.model import FittedAttributes, FittedModel
from kedrl_dask.numerics.criterion.separated import Chunk, ReturnSpace
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.kernels.spectral import as_complex, waves
from kedrl_dask.numerics.regression.density_ratio import DensityRatio
from kedrl_dask.numerics.regression.operators import ConditionalOperators
from kedrl_dask.numerics.regression.reward_trend import LinearTrend, TrendWaves
from kedrl_dask.numerics.solvers import LBFGS, PCG
from kedrl_dask.utils.arrays import Coefficients, Features, Indices, Inputs, Matrices, Real, Waves
from kedrl_dask.utils.checks import MOST_SEED, check_count, check_number, check_share, shown
from kedrl_dask.utils.exceptions import NumericalError
from kedrl_dask.utils.progress import Reporter

#: Replicates whose sums are in memory at once.
BATCH = 10
#: Fewest blocks of episodes that replicates can be drawn from.
FEWEST_BLOCKS = 5
#: Most replicates.
MOST_REPLICATES = 10**5
#: Relative gradient to which a replicate is solved: far below what replicates differ by.
TOLERANCE = 1e-5
#: Inputs at which the fit's expectations are taken to fit a trend again.
EXPECTED_AT = 4_000
#: Bias in standard errors at the smallest mean square error, if that falls as N^(-4/5): √(5/4 − 1).
BIAS = 0.5


class Interval(NamedTuple):
    """Ends of intervals, each with the shape of the estimate."""

    low: Real
    high: Real


@dataclass(frozen=True)
class Draws:
    """A quantity in the fit and in its replicates.

    Attributes
    ----------
    estimate : array
        Its value in the fit.
    values : (n_replicates, …) array
        Its values in the replicates.
    counts : (n_replicates, n_blocks) array
        How often each block of episodes was drawn.

    Examples
    --------
    >>> import numpy as np
    >>> values = np.array([[0.9], [1.0], [1.1], [1.2]])
    >>> draws = Draws(np.array([1.0]), values, np.ones((4, 5), dtype=int))
    >>> draws.standard_error.round(3)
    array([0.144])
    >>> draws.interval(0.9, "percentile").high.round(3)
    array([1.185])
    """

    estimate: Real
    values: Real
    counts: Indices

    @property
    def standard_error(self) -> Real:
        """Standard deviation over the replicates times √(B/(B − 1)), as draws are from B blocks."""
        n_blocks = self.counts.shape[1]
        return np.asarray(np.sqrt(n_blocks / (n_blocks - 1)) * self.values.std(axis=0, ddof=1))

    def interval(
        self,
        level: float = 0.9,
        method: Literal["normal", "basic", "percentile"] = "normal",
        bias: float = BIAS,
    ) -> Interval:
        """Intervals, each of which covers with about this probability.

        Parameters
        ----------
        level : float
        method : {"normal", "basic", "percentile"}
            "normal" takes the standard error times Student's quantiles for the number of replicates, "basic"
            twice the estimate less quantiles of the replicates, "percentile" these quantiles. The last two
            need hundreds of replicates.
        bias : float
            Bias in standard errors that "normal" intervals allow for. Replicates do not show the bias of
            regularisation; if that was chosen for the smallest error, as by cross-validation, half a standard
            error is to be expected (Armstrong and Kolesár, 2020). Zero if the estimate is unbiased.
        """
        check_share("interval: level", level)
        check_number("interval: bias", bias, "a number of standard errors ≥ 0")
        if method == "normal":
            reach = _critical_value(level, len(self.values) - 1, bias) * self.standard_error
            return Interval(self.estimate - reach, self.estimate + reach)
        tail = (1 - level) / 2
        low, high = np.quantile(self.values, [tail, 1 - tail], axis=0)
        if method == "percentile":
            return Interval(low, high)
        if method == "basic":
            return Interval(2 * self.estimate - high, 2 * self.estimate - low)
        raise ValueError(f"interval: method must be 'normal', 'basic' or 'percentile', got {method!r}")

    def __sub__(self, other: Draws) -> Draws:
        """The difference of a quantity between two policies, replicate by replicate."""
        if not np.array_equal(self.counts, other.counts):
            raise ValueError(
                "the replicates come from different draws of episodes; bootstrap both policies on the same "
                "store with the same n_blocks, n_replicates and random_state"
            )
        return Draws(self.estimate - other.estimate, self.values - other.values, self.counts)


def _critical_value(level: float, degrees: int, bias: float) -> float:
    """Bound that |N(bias, 1)| keeps with this probability, times Student's quantile over the normal one."""
    tail = (1 - level) / 2
    return float(np.sqrt(chndtrix(level, 1, bias**2)) * stdtrit(degrees, tail) / ndtri(tail))


Model = TypeVar("Model", bound=FittedAttributes)


@dataclass(frozen=True)
class Bootstrap(Generic[Model]):
    """Replicates of a fit; made by :meth:`kedrl_dask.KEDRL.bootstrap`.

    Attributes
    ----------
    model : KEDRL
        The fit.
    coefficients : (n_replicates, L, m) array
        B of each replicate.
    counts : (n_replicates, n_blocks) array
        How often each block of episodes was drawn: the same for every policy on the same data, so that
        differences between policies can be taken replicate by replicate.
    """

    model: Model
    coefficients: Matrices
    counts: Indices

    def apply(self, function: Callable[[Model], npt.ArrayLike]) -> Draws:
        """Any function of a fitted model's coefficients, in the fit and in the replicates.

        Answers that would mislead are refused for the fit, never for a replicate. For intervals of embedding
        values: ``bootstrap.apply(lambda model: model.embed(state, action, at=z)).interval(0.9)``.
        """
        estimate = np.asarray(function(self._with(self.model.fitted_)))
        values = np.stack([np.asarray(function(replica)) for replica in self._replicas()])
        return Draws(estimate, values, self.counts)

    def _replicas(self) -> Iterator[Model]:
        for coefficients in self.coefficients:
            yield self._with(replace(self.model.fitted_, coefficients=coefficients, is_replicate=True))

    def _with(self, fitted: FittedModel) -> Model:
        """The model without simulated returns, which would be the same in every replicate."""
        replica = copy(self.model)
        replica.fitted_ = replace(fitted, simulator=None)
        return replica


def run_bootstrap(
    model: Model, request: Request, n_replicates: int, random_state: int, cache: Cache, reporter: Reporter
) -> Bootstrap[Model]:
    """Resample and solve; see :meth:`kedrl_dask.KEDRL.bootstrap`."""
    settings, store, policy, executor = request.settings, request.store, request.policy, request.executor
    if model.fitted_.construction != "separated" or settings.operators != "features":
        raise ValueError(
            "bootstrap: block sums are kept only for construction='separated' with operators='features', and "
            f"this fit is {model.fitted_.construction} with {settings.operators}; fit with "
            "construction='separated', and centring='none' if that is refused"
        )
    settings = replace(settings, construction="separated")
    check_count("bootstrap: n_replicates", n_replicates, least=2, most=MOST_REPLICATES)
    check_count("bootstrap: random_state", random_state, least=0, most=MOST_SEED)
    fitted = model.fitted_
    facts = fitted.diagnostics
    if (store.fingerprint, store.base.fingerprint) != (facts["data"], facts.get("design", facts["data"])):
        raise ValueError(
            f"bootstrap: {store.path} does not hold the transitions that the model was fitted on"
        )
    check_policy(policy, store)
    if repr(policy) != fitted.diagnostics["policy"]:
        raise ValueError(
            f"bootstrap: the model was fitted for {shown(fitted.diagnostics['policy'])}, not for "
            f"{shown(policy)}; give the policy of the fit"
        )
    with reporter.stage("design"):
        store, choices, pilot = design(settings, store, policy, cache, executor)
        prior = None if pilot is None else choices.prior(pilot.inputs, pilot.returns)
    settings = choices.settle(settings)
    streamed = stream(settings, store, policy, choices, executor, cache, reporter)
    n_blocks = len(streamed.blocks[0])
    if n_blocks < FEWEST_BLOCKS:
        raise ValueError(
            f"bootstrap: {n_blocks} blocks of episodes are too few to draw from; give at least "
            f"{FEWEST_BLOCKS} episodes, and n_blocks as many"
        )
    rng = np.random.default_rng([random_state, 8])
    counts = rng.multinomial(n_blocks, np.full(n_blocks, 1 / n_blocks), size=n_replicates)
    start = Prepared(
        settings, store, choices, fitted.operators, fitted.ridges, fitted.ridge_b, fitted.mass_penalty,
        replace(request, settings=settings, store=store).plan(cache), executor, cache,
    )  # fmt: skip
    around = fitted.operators.trend
    inputs = choices.sample.inputs
    expected = None if around is None else ExpectedWaves.build(fitted.operators, around, inputs)
    found = []
    with reporter.stage("replicates", n_replicates) as advance:
        for first, last in even_ranges(n_replicates, BATCH):
            for sums in _weighted_sums(streamed.blocks, choices.features, counts[first:last]):
                if expected is not None:
                    trend, sums = expected.refit_trend(sums)
                    start = replace(start, choices=replace(choices, trend=trend))
                found.append(_replicate(start, sums, streamed.continuation.ratio, fitted.coefficients, prior))
                advance()
    return Bootstrap(model, np.stack(found), counts)


def _weighted_sums(
    blocks: list[StoredBlocks], features: NystromFeatures, counts: Indices
) -> Iterator[RegressionSums]:
    """Sums of several replicates; each block is read once for all of them."""
    totals: dict[str, Real] = {}
    for of_kind in blocks:
        for name in of_kind.names:
            totals[name] = np.zeros((len(counts), *of_kind.shape(name)))
            for number in range(len(of_kind)):
                block = of_kind.read(name, number)
                for replicate in np.flatnonzero(counts[:, number]):  # zero times infinity is NaN
                    totals[name][replicate] += counts[replicate, number] * block
    for name in {"reward", "terminal", "continuation"} & set(totals):
        totals[name] = features.complete_sums(totals[name])
    for i in range(len(counts)):
        yield RegressionSums(**{name: total[i : i + 1] for name, total in totals.items()})


@dataclass(frozen=True)
class ExpectedWaves:
    """Expectations of exp(iWe), e = r − m(x), under the fit at some logged inputs.

    With the trend m + δ of a replicate the residual's waves are exp(iWe) ⊙ exp(−iWδ(x)). What the second
    factor changes in their sums is taken at the expectation of the first: δ is of the order of N^(-1/2), and
    what that leaves out of N⁻¹.
    """

    around: TrendWaves  # the fit's trend m
    inputs: Inputs
    features: Features  # ψ
    reward: Waves  # E[exp(iWe)|x]
    terminal: Waves | None  # E[1{terminal} exp(iWe)|x]

    @classmethod
    def build(cls, operators: ConditionalOperators, around: TrendWaves, inputs: Inputs) -> ExpectedWaves:
        """By the operators of the fit, at no more than ``EXPECTED_AT`` of the inputs."""
        inputs = inputs[:: -(-len(inputs) // EXPECTED_AT)]
        psi = operators.features(inputs)
        terminal = None if operators.terminal is None else psi @ operators.terminal
        return cls(around, inputs, psi, around.mean + psi @ operators.reward, terminal)

    def refit_trend(self, sums: RegressionSums) -> tuple[LinearTrend, RegressionSums]:
        """The trend of a replicate, and its sums around this, given those around m."""
        before = self.around.trend
        trend = before.refit(sums.trend_moments)
        turned = as_complex(waves(before(self.inputs) - trend(self.inputs), self.around.frequencies))
        turned -= 1
        share = sums.n_transitions / len(self.inputs)

        def change(expected: Waves) -> Waves:
            return share * (turned * as_complex(expected)).view(np.float64)

        reward, terminal = change(self.reward), sums.terminal
        if terminal is not None and self.terminal is not None:
            terminal = terminal + self.features.T @ change(self.terminal)
        return trend, replace(
            sums,
            reward=sums.reward + self.features.T @ reward,
            reward_sum=sums.reward_sum + reward.sum(axis=0),
            terminal=terminal,
        )


@dataclass(frozen=True)
class _Resampled(Conditioning):
    """Conditioning points of a replicate, which are not stored."""

    def load(self, rows: tuple[int, int]) -> Chunk:
        """Compute the chunk, which stays in memory."""
        return self.compute(rows)


def _replicate(
    start: Prepared,
    sums: RegressionSums,
    ratio: DensityRatio | None,
    coefficients: Coefficients,
    prior: Coefficients | None,
) -> Coefficients:
    """B of a replicate, from its sums."""
    choices, settings, executor = start.choices, start.settings, start.executor
    if ratio is not None and ratio.clip is not None:
        _, sums = recalibrate(ratio, sums)
    operators = regress(choices, sums, start.ridges)
    whitening = choices.basis.whitening
    whitened = replace(operators, continuation=operators.continuation @ whitening)
    filed = file_conditioning(settings, start.store, operators.kernel, start.cache)
    problem = BellmanObjective(
        executor,
        _Resampled(filed, filed, whitened, choices.basis, settings.dtype),
        in_groups(settings.ranges(start.store.base.n_transitions), executor.n_threads),
        "resident" if start.plan.residency == "resident" else "recomputed",
        ReturnSpace.build(choices.grid, choices.frequencies, settings.discount, choices.return_kernel),
        start.penalties,
        start.ridge_b,
    )
    solver = PCG(TOLERANCE) if problem.is_quadratic else LBFGS(TOLERANCE)
    center = np.zeros(problem.shape) if prior is None else prior
    solution = solver.solve(Around(problem, center), start=solve_triangular(whitening, coefficients) - center)
    if not solution.result.ok:
        raise NumericalError(f"bootstrap: a replicate was not solved: {solution.result.value}")
    return whitening @ (center + solution.coefficients)
