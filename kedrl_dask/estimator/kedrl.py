"""The estimator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.execute.default import checked_executor
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.plan.plan import Plan
from kedrl_dask.estimator.bootstrap import Bootstrap, run_bootstrap
from kedrl_dask.estimator.constraints import documented
from kedrl_dask.estimator.deprecated import CallableParameter
from kedrl_dask.estimator.fit.pipeline import Request, workspace
from kedrl_dask.estimator.fit.planning import plan_fit
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.estimator.fit_model import fit_model
from kedrl_dask.estimator.fitted import answers, persistence
from kedrl_dask.estimator.fitted.model import FittedAttributes
from kedrl_dask.estimator.fitted.notebook import fit_html
from kedrl_dask.estimator.parameters import Conditioning
from kedrl_dask.estimator.run import CHECKPOINT_SECONDS, recorded_fit
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.spectral import Method
from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.regression.density_ratio import ULSIF
from kedrl_dask.numerics.regression.operators import OperatorBlocks
from kedrl_dask.numerics.solvers import Solver
from kedrl_dask.utils.arrays import Real, Vector, Weights
from kedrl_dask.utils.process import driver_blas_threads
from kedrl_dask.utils.progress import Reporter


@documented(Settings)
class KEDRL(FittedAttributes, BaseEstimator):
    """Kernel embedding of the law of the multivariate discounted return under a target policy.

    Fits the coefficients B of ω(x) = Bᵀk_L(x), so that μ̂(x) = Σ_i ω_i(x) k_Z(z_i, ·) satisfies the
    distributional Bellman equation in the norm of the return kernel's RKHS (eq:global_B_objective). The
    coefficients are signed; they are not probabilities.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    coefficients_ : (L, m) array
        Coefficients B.
    grid_, basis_, frequencies_ : (m, d), (L, p + q) and (Q, d) arrays
        Return atoms, state-action basis, and spectral frequencies of the return kernel.
    solution_ : Solution
        How the solver ended, with its certificate.
    diagnostics_ : dict
        Plain numbers about every stage.
    input_kernel_, return_kernel_ : Matern
        Kernels used.
    ridge_gamma_, ridge_reward_, ridge_b_, mass_penalty_ : float
        Ridges and penalty used. ``ridge_reward_`` is another one only with a trend of the reward.
    operators_ : ConditionalOperators
        Φ_L, ρ and ΣΓ at any input; with exact operators, H and G in place of ρ.
    construction_ : {"separated", "paired"}
        Construction used.
    target_ : (r, 2Q) array or None
        Coefficients of the target at B on the features ψ, in the paired construction.
    ratio_ : DensityRatio or None
        Density ratio η̂, with ``continuation="ratio"``.
    potential_ : Potential or None
        Ψ, with ``centring="auto"``: the atoms of the return at a state are ``grid_`` + Ψ(s).
    simulator_ : Simulator or None
        Returns of the policy at any input, with ``centring="auto"``.
    encoding_ : Encoding or None
        How the columns of an ingested table were encoded.
    plan_ : Plan or None
        What the fit was projected to take; not saved.
    fitted_ : FittedModel
        All of the above as one immutable value.

    See Also
    --------
    kedrl_dask.compare : Evaluate several policies on the same data.
    kedrl_dask.ConditionalEmbedding : Embedding of returns that were observed.
    kedrl_dask.TransitionStore : The logged transitions.

    Notes
    -----
    With ``negative_penalty=0`` the criterion is a linear least-squares problem, which "pcg" solves to its
    minimum. Results do not depend on chunks, threads or workers. ``diagnostics_["tuning"]`` has everything
    that was tried for automatic settings.

    References
    ----------
    .. [1] Mohammadi, M., Zheng, Q. and Zhu, R. "Vector-Valued Distributional Reinforcement Learning Policy
       Evaluation: A Hilbert Space Embedding Approach." Labels such as eq:hat_w are its own.

    Examples
    --------
    >>> import numpy as np
    >>> from kedrl_dask import KEDRL, Matern, TransitionStore, policies
    >>> rng = np.random.default_rng(0)
    >>> state, action = rng.normal(size=(1_000, 1)), rng.normal(size=(1_000, 1))
    >>> episode, step = np.divmod(np.arange(1_000), 20)
    >>> store = TransitionStore.from_arrays(
    ...     "log.zarr", state=state, action=action, reward=state + action, episode=episode, step=step
    ... )
    >>> policy = policies.Gaussian(weights=[[0.5]], bias=0.0, scale=0.5)
    >>> small = {"n_atoms": 50, "n_basis": 50, "n_landmarks": 80, "reward_trend": "none"}
    >>> model = KEDRL(0.5, input_kernel=Matern(length_scale=3.0), **small)
    >>> model = model.fit(store, policy, progress="none")
    >>> at = [[0.0]], [[1.0]]  # a state and an action
    >>> model.weights(*at).shape
    (1, 50)
    >>> law = model.recover(*at)
    >>> law.mean().round(1)  # 1 is right
    array([[0.9]])
    >>> model.embed(*at, at=[[1.0], [9.0]]).round(1)
    array([[0.8, 0. ]])
    >>> model.operator_blocks(*at).H.shape
    (1, 50, 50)
    >>> replicates = model.bootstrap(store, policy, 5, progress="none")
    >>> replicates.apply(lambda m: m.recover(*at).mean()).values.shape
    (5, 1, 1)
    >>> model.save("model.zarr")
    >>> KEDRL.load("model.zarr").recover(*at).mean() == law.mean()
    array([[ True]])
    """

    def __init__(
        self,
        discount: float,
        *,
        construction: Literal["auto", "separated", "paired"] = "auto",
        centring: Literal["auto", "none"] = "auto",
        continuation: Literal["sampled", "ratio"] = "sampled",
        solver: str | Solver = "pcg",
        input_kernel: Matern | Literal["auto"] = "auto",
        return_kernel: Matern | Literal["auto"] = "auto",
        n_atoms: int | Literal["auto"] = 100,
        n_basis: int | Literal["auto"] = 250,
        n_landmarks: int | Literal["auto"] = 500,
        n_features: int | Literal["auto"] = 256,
        n_conditioning: int | float | Literal["all"] | None = None,
        conditioning: Conditioning = "random",
        ridge_gamma: float | Literal["auto"] = "auto",
        ridge_b: float | Literal["auto"] = "auto",
        mass_penalty: float | Literal["auto"] = 1.0,
        negative_penalty: float = 0.0,
        grid: npt.ArrayLike | None = None,
        grid_expansion: float = 1.2,
        reward_bounds: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        paired_form: Literal["auto", "contracted", "matrix-free"] = "auto",
        n_draws: int | Literal["auto"] = "auto",
        ratio: ULSIF | None = None,
        spectral: Method = "qmc",
        points: Literal["kmeans", "random"] = "kmeans",
        landmark_threshold: float = 1e-7,
        n_blocks: int = 40,
        chunk_points: int | Literal["auto"] = "auto",
        precision: Literal["mixed", "double"] = "mixed",
        random_state: int = 0,
        operators: Literal["features", "exact"] = "features",
        reward_trend: Literal["none", "linear", "auto"] = "auto",
    ) -> None:
        self.discount = discount
        self.construction = construction
        self.centring = centring
        self.continuation = continuation
        self.solver = solver
        self.input_kernel = input_kernel
        self.return_kernel = return_kernel
        self.n_atoms = n_atoms
        self.n_basis = n_basis
        self.n_landmarks = n_landmarks
        self.n_features = n_features
        self.n_conditioning = n_conditioning
        self.conditioning = conditioning
        self.ridge_gamma = ridge_gamma
        self.ridge_b = ridge_b
        self.mass_penalty = mass_penalty
        self.negative_penalty = negative_penalty
        self.grid = grid
        self.grid_expansion = grid_expansion
        self.reward_bounds = reward_bounds
        self.paired_form = paired_form
        self.n_draws = n_draws
        self.ratio = ratio
        self.spectral = spectral
        self.points = points
        self.landmark_threshold = landmark_threshold
        self.n_blocks = n_blocks
        self.chunk_points = chunk_points
        self.precision = precision
        self.random_state = random_state
        self.operators = operators
        self.reward_trend = reward_trend

    operators: Literal["features", "exact"] = CallableParameter()  # type: ignore[assignment]

    def fit(
        self,
        store: TransitionStore | str | Path,
        policy: Policy,
        *,
        executor: Executor | None = None,
        cache: str | Path | None = None,
        memory: int | str | None = None,
        progress: Literal["auto", "bars", "log", "none"] = "auto",
        run: str | Path | None = None,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
    ) -> KEDRL:
        """Estimate the embedding of the return under ``policy``.

        Parameters
        ----------
        store : TransitionStore or path
            The logged transitions.
        policy : Policy
            The target policy.
        executor : Executor, optional
            Where chunk functions run: by default the active :class:`distributed.Client`, or threads of
            this process if there is none.
        cache : path, optional
            Directory where landmarks, block sums and conditioning points are kept, each under a
            fingerprint of its inputs. A later fit with the same directory, for another policy or discount,
            computes only what is missing. All workers must be able to reach it.
        memory : int or str, optional
            What each worker process may use, in bytes or as "2 GiB". By default three fifths of the
            workers' limit, or four fifths of this machine's free memory. A fit that would use more is
            refused.
        progress : {"auto", "bars", "log", "none"}
            Bars on a terminal or in a notebook, log lines elsewhere.
        run : path, optional
            Directory of the run. An interrupted fit with the same settings, data and policy resumes from
            it. All workers must be able to reach it.
        checkpoint_seconds : float
            Time between checkpoints of the solver, in a run.

        Returns
        -------
        self
        """
        request = Request(*self._prepared(store), policy, checked_executor(executor), memory)
        self.fitted_ = fit_model(self._settings(), request, cache, progress, run, checkpoint_seconds)
        return self

    @classmethod
    def resume(cls, run: str | Path, *, policy: Policy | None = None, **options: Any) -> KEDRL:
        """Resume the fit of a run, or read the result of a finished one.

        ``policy`` is needed if it is code, such as ``policies.Function``. Options are
        ``executor``, ``memory``, ``progress`` and ``checkpoint_seconds`` of :meth:`fit`.
        """
        settings, arguments = recorded_fit(Path(run), policy)
        return cls(**settings).fit(**arguments, **options)

    def _settings(self) -> Settings:
        """Check the parameters by themselves and against each other."""
        return Settings(**self.get_params(deep=False))

    def _prepared(self, store: TransitionStore | str | Path) -> tuple[Settings, TransitionStore]:
        """Check the parameters against the data, and give them in the units of the store."""
        settings = self._settings()
        if not isinstance(store, TransitionStore):
            store = TransitionStore.open(store)
        settings.check_data(store.state_dim, store.action_dim, store.reward_dim, store.base.n_transitions)
        return settings.in_own_units(store.encoding), store

    def plan(
        self,
        store: TransitionStore | str | Path,
        *,
        executor: Executor | None = None,
        workers: int | None = None,
        memory: int | str | None = None,
        calibrate: bool = True,
    ) -> Plan:
        """Project what :meth:`fit` will take: tasks, flop, time, peak memory and disk, stage by stage.

        Parameters
        ----------
        store : TransitionStore or path
        executor, memory
            As for :meth:`fit`.
        workers : int, optional
            Number of worker processes to plan for; by default those of the executor.
        calibrate : bool
            Whether to measure rates, which takes about a second, or assume those of a slow machine.

        Automatic sizes are planned at their largest, and an automatic construction as the longer one; the
        fit chooses them and plans again.

        Returns
        -------
        Plan
            Not yet checked: ``plan.check()`` refuses one over budget.
        """
        settings, store = self._prepared(store)
        return plan_fit(settings, store, checked_executor(executor), memory, workers, calibrate)

    def bootstrap(
        self,
        store: TransitionStore | str | Path,
        policy: Policy,
        n_replicates: int = 100,
        *,
        executor: Executor | None = None,
        cache: str | Path | None = None,
        random_state: int = 0,
        progress: Literal["auto", "bars", "log", "none"] = "auto",
    ) -> Bootstrap[KEDRL]:
        """Replicates of this fit on blocks of episodes drawn with replacement.

        Automatic settings stay as the fit chose them, so that intervals do not cover their choice. ``store``
        and ``policy`` must be those of the fit; with its ``cache`` no pass over the data is needed. Policies
        to be compared need the same ``random_state``. ``apply(function)`` of the result gives any function
        of the fitted model with its replicates, standard errors and intervals. Coefficients of replicates
        are those of the fit and their first-order change; returns are simulated anew in each.
        """
        check_is_fitted(self)
        request = Request(*self._prepared(store), policy, checked_executor(executor), None)
        with driver_blas_threads(), workspace(request.store, cache) as space:
            return run_bootstrap(self, request, n_replicates, random_state, space, Reporter(progress))

    def weights(self, state: npt.ArrayLike, action: npt.ArrayLike) -> Weights:
        """Signed coefficients ω(x) (eq:hat_w) at each input; (n, m)."""
        check_is_fitted(self)
        return self.fitted_.weights(self.fitted_.inputs(state, action))

    def embed(self, state: npt.ArrayLike, action: npt.ArrayLike, at: npt.ArrayLike) -> Real:
        """Values μ̂(x)(z) of the fitted embedding (eq:final_embedding_prediction).

        Parameters
        ----------
        state, action : (n, p) and (n, q) arrays
        at : (g, d) or (n, g, d) array
            Return points z, common to all inputs or each input's own.

        Returns
        -------
        (n, g) array
        """
        check_is_fitted(self)
        return self.fitted_.embed(self.fitted_.inputs(state, action), at)

    def embedding(
        self, state: npt.ArrayLike, action: npt.ArrayLike | Policy, accept: Sequence[str] = ()
    ) -> answers.FittedEmbedding:
        """The fitted embeddings as elements of the RKHS: expectations, distances, averages, recovered laws.

        With a policy in place of actions, the embeddings are averaged over a ~ π(·|s) at each state. They are
        refused where diagnostics say that answers would mislead, unless the codes of these findings
        (:data:`kedrl_dask.estimator.fitted.findings.CODES`) are in ``accept``, which is recorded. See
        :class:`kedrl_dask.numerics.laws.functionals.Embedding`.
        """
        check_is_fitted(self)
        return answers.fitted_embedding(self.fitted_, state, action, accept)

    def recover(
        self,
        state: npt.ArrayLike,
        action: npt.ArrayLike | Policy,
        accept: Sequence[str] = (),
        method: answers.RecoveryMethod = "auto",
        **settings: Any,
    ) -> answers.FittedLaw:
        """Probability laws near the fitted embedding at each input (sec:stat_recovery), refused like it.

        With ``method="simulated"``, simulated returns of each input are weighted so that their law has nearly
        the fitted embedding; with "grid", the paper's, the embedding is inverted on the atoms of the return
        grid under ``settings`` of :class:`kedrl_dask.numerics.laws.recovery.RecoverySettings`. "auto" takes
        the first if the model can simulate and no such settings are given. The laws have ``mean()``,
        ``covariance()``, ``cdf``, ``quantile``, ``cvar``, ``density``, ``pmf``, ``prob`` and ``findings``.
        """
        check_is_fitted(self)
        return answers.fitted_law(self.fitted_, state, action, accept, method, settings)

    def bellman_risk(self, state: npt.ArrayLike, action: npt.ArrayLike) -> Vector:
        """Squared projected Bellman residual (eq:generalization_metric) at each input; (n,).

        The operators are those of the training transitions. The risk says how well the fitted map
        satisfies the projected Bellman equation: it is neither a policy value nor a bound on a distance
        between laws.
        """
        check_is_fitted(self)
        return self.fitted_.bellman_risk(self.fitted_.inputs(state, action))

    def operator_blocks(
        self,
        state: npt.ArrayLike,
        action: npt.ArrayLike,
        *,
        exact: bool | None = None,
        store: TransitionStore | str | Path | None = None,
    ) -> OperatorBlocks:
        """The operators H, G, Φ_L and k_L at any inputs.

        Parameters
        ----------
        state, action : (n, p) and (n, q) arrays
        exact : bool, optional
            Whether H and G come from the return kernel itself instead of features; as in the fit by default.
        store : TransitionStore or path, optional
            The transitions of the fit, over which exact sums go. A model fitted with
            ``operators="exact"`` has its own.

        Returns
        -------
        OperatorBlocks
            Arrays ``H``, ``G`` (n, m, m), ``Phi``, ``k_L`` (n, L), and terminal terms if there are any.
        """
        check_is_fitted(self)
        return self.fitted_.operator_blocks(self.fitted_.inputs(state, action), exact, store)

    def save(self, path: str | Path) -> None:
        """Write the fitted model as a Zarr store (no pickle) at a new path."""
        check_is_fitted(self)
        persistence.save(self.fitted_, path)

    @classmethod
    def load(cls, path: str | Path, policy: Policy | None = None) -> KEDRL:
        """Read a model written by :meth:`save`.

        ``policy`` is that of the fit: without it, a model whose policy is code, such as
        ``policies.Function``, does not simulate returns, and :meth:`recover` inverts its embedding.
        """
        fitted = persistence.load(path, lambda **parameters: cls(**parameters)._settings(), policy)
        model = cls(**fitted.settings.get_params())
        model.fitted_ = fitted
        return model

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there is a fitted model."""
        return hasattr(self, "fitted_")

    def _repr_html_(self) -> str:
        """What the fit found; before it, scikit-learn shows the parameters."""
        return fit_html(self.fitted_) if hasattr(self, "fitted_") else super()._repr_html_()

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}
