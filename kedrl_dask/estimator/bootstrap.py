"""Uncertainty by resampling trajectories: replicates of a fit, without another pass over the data.

Blocks of whole episodes are drawn with replacement. The coefficients of a replicate are those of the fit and
what the weights of its blocks change, to first order (:mod:`kedrl_dask.estimator.influence`); its returns are
simulated with a model of transitions that is fitted to its blocks again, and other random numbers. What was
chosen for the fit, such as kernels, ridges, grid and potential, stays.
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

from kedrl_dask.engine.storage.cache import Cache
from kedrl_dask.estimator.fit.construction import Decision
from kedrl_dask.estimator.fit.pilot import resample_models
from kedrl_dask.estimator.fit.pipeline import Request, check_policy, design
from kedrl_dask.estimator.fit.problem import Prepared
from kedrl_dask.estimator.fit.streaming import stream
from kedrl_dask.estimator.fitted.model import FittedAttributes, FittedModel
from kedrl_dask.estimator.influence import block_influence
from kedrl_dask.numerics.simulation.simulator import Simulator
from kedrl_dask.utils.arrays import Indices, Matrices, Real
from kedrl_dask.utils.checks import MOST_SEED, check_count, check_number, check_share, shown
from kedrl_dask.utils.progress import Reporter

#: Fewest blocks of episodes that replicates can be drawn from.
FEWEST_BLOCKS = 5
#: Most replicates.
MOST_REPLICATES = 10**5
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
    simulators : tuple of Simulator or None
        Returns of each replicate, of a model that simulates them.
    """

    model: Model
    coefficients: Matrices
    counts: Indices
    simulators: tuple[Simulator, ...] | None = None

    def __len__(self) -> int:
        """Return the number of replicates."""
        return len(self.coefficients)

    def apply(self, function: Callable[[Model], npt.ArrayLike]) -> Draws:
        """Any function of a fitted model's coefficients, in the fit and in the replicates.

        Answers that would mislead are refused for the fit, never for a replicate. For intervals of embedding
        values: ``bootstrap.apply(lambda model: model.embed(state, action, at=z)).interval(0.9)``.
        """
        estimate = np.asarray(function(self.model))
        values = np.stack([np.asarray(function(replica)) for replica in self._replicas()])
        return Draws(estimate, values, self.counts)

    def _replicas(self) -> Iterator[Model]:
        for number in range(len(self)):
            replica = copy(self.model)
            replica.fitted_ = self.fitted(number)
            yield replica

    def fitted(self, number: int) -> FittedModel:
        """The fitted model of a replicate."""
        simulator = None if self.simulators is None else self.simulators[number]
        own = {"coefficients": self.coefficients[number], "simulator": simulator}
        return replace(self.model.fitted_, **own, is_replicate=True)


def run_bootstrap(
    model: Model, request: Request, n_replicates: int, random_state: int, cache: Cache, reporter: Reporter
) -> Bootstrap[Model]:
    """Resample; see :meth:`kedrl_dask.KEDRL.bootstrap`."""
    check_count("bootstrap: n_replicates", n_replicates, least=2, most=MOST_REPLICATES)
    check_count("bootstrap: random_state", random_state, least=0, most=MOST_SEED)
    _check(model.fitted_, request)
    settings, store, policy, executor = request.settings, request.store, request.policy, request.executor
    fitted = model.fitted_
    with reporter.stage("design"):
        store, choices, pilot = design(settings, store, policy, cache, executor)
    decision = Decision(fitted.construction, "given", {})
    settings, choices = decision.settle(choices.settle(settings), choices)
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
    whitening = choices.basis.whitening
    whitened = solve_triangular(whitening, fitted.coefficients)
    influence = whitening @ block_influence(start, streamed, whitened, reporter)
    found = fitted.coefficients + np.tensordot(counts - 1.0, influence, 1)
    if pilot is None:
        return Bootstrap(model, found, counts, None)
    with reporter.stage("models of transitions"):
        models = resample_models(settings, request.store, cache, counts, executor.n_threads)
    simulators = [
        Simulator(one, policy, settings.discount, settings.random_state, stream)
        for stream, one in enumerate(models)
    ]
    model = copy(model)
    model.fitted_ = replace(fitted, simulator=simulators[0])  # it may be unknown of a loaded model
    return Bootstrap(model, found, counts, tuple(simulators[1:]))


def _check(fitted: FittedModel, request: Request) -> None:
    """Refuse other data, another policy, and operators of which no block sums are kept."""
    settings, store, policy = request.settings, request.store, request.policy
    if settings.operators != "features":
        raise ValueError(
            "bootstrap: block sums are kept only with operators='features', and this fit has "
            f"operators={settings.operators!r}"
        )
    facts = fitted.diagnostics
    if (store.fingerprint, store.base.fingerprint) != (facts["data"], facts.get("design", facts["data"])):
        raise ValueError(
            f"bootstrap: {store.path} does not hold the transitions that the model was fitted on"
        )
    check_policy(policy, store)
    if repr(policy) != facts["policy"]:
        raise ValueError(
            f"bootstrap: the model was fitted for {shown(facts['policy'])}, not for {shown(policy)}; give "
            "the policy of the fit"
        )
