"""The paper's reference: the regularised conditional mean embedding of observed responses.

Unlike KE-DRL, it sees a return for each input (sec:tikhonov_reference), which separates the error of a
regression of that size from the error of the Bellman step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from kedrl_dask.engine.data.transition_store import Transitions, TransitionStore
from kedrl_dask.engine.data.transitions import pair_rows as pair_rows
from kedrl_dask.engine.execute.default import checked_executor
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.passes.streaming_pass import Destination, StreamingPass
from kedrl_dask.engine.storage.schema import INPUT_SUMS, REFERENCE, RESPONSE_SUMS
from kedrl_dask.estimator.constraints import count, documented, either, number, parameter
from kedrl_dask.estimator.fit.design import tune_on
from kedrl_dask.estimator.fit.pipeline import workspace
from kedrl_dask.estimator.fit.regression import StoredBlocks, read_folds
from kedrl_dask.estimator.fit.streaming import create_sums, episode_blocks, sum_blocks
from kedrl_dask.estimator.fitted import persistence
from kedrl_dask.estimator.fitted.inputs import by_rows, checked_returns, joined_inputs
from kedrl_dask.estimator.parameters import CommonParameters
from kedrl_dask.numerics.design.points import choose_points
from kedrl_dask.numerics.design.sizes import DESIGN_SAMPLE
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures, solve_ridge
from kedrl_dask.numerics.regression.cross_validation import RIDGES, BlockSums, cross_validate_ridge
from kedrl_dask.numerics.regression.input_kernel import median_kernel
from kedrl_dask.utils.arrays import Array, Inputs, Real, Record, Vector
from kedrl_dask.utils.checks import check_number, shown
from kedrl_dask.utils.exceptions import require_finite
from kedrl_dask.utils.process import driver_blas_threads
from kedrl_dask.utils.progress import Reporter

KIND = "kedrl conditional embedding"


@dataclass(frozen=True, kw_only=True)
class EmbeddingParameters(CommonParameters):
    """The parameters of :class:`ConditionalEmbedding`."""

    estimator: ClassVar[str] = "ConditionalEmbedding"

    n_landmarks: int = parameter(count(), "Number of Nyström landmarks of the inputs.")
    n_features: int = parameter(
        count(), "Number of landmarks of the responses, by which the embedding is evaluated."
    )
    ridge: float | Literal["auto"] = parameter(
        either("auto", number(open_low=True)),
        """Ridge λ. "auto" cross-validates over blocks of pairs, with the error in the norm of the return
        kernel's RKHS.""",
    )


@documented(EmbeddingParameters)
class ConditionalEmbedding(BaseEstimator):
    """Regularised conditional mean embedding of observed pairs (x, z) (sec:tikhonov_reference).

    μ̂(x) = Σ_j Γ_j(x) k_Z(z_j, ·) with Γ(x) = (K_X + nλI)⁻¹k_X(x), on whitened Nyström features ψ of the
    inputs and ψ_Z of the responses: μ̂(x)(z) = ψ(x)ᵀ(A + nλI)⁻¹C ψ_Z(z) with A = Σψψᵀ and C = Σψψ_Zᵀ, two
    sums over the pairs on disk. The approximation is exact when all inputs and all responses are landmarks.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    coefficients_ : (r, r_Z) array
        (A + nλI)⁻¹C.
    features_, response_features_ : NystromFeatures
        ψ and ψ_Z.
    input_kernel_, return_kernel_, ridge_
        The settings used.
    diagnostics_ : dict
        Plain numbers: sizes, what was tried, residuals of the landmarks, and the seconds of each stage.

    Notes
    -----
    With P the projection on the sections of the response landmarks, the values are those of Pμ̂(x), and
    |μ̂(x)(z) − Pμ̂(x)(z)| ≤ √(σ² − ‖ψ_Z(z)‖²)·Σ_j|Γ_j(x)|·√(σ² − ‖ψ_Z(z_j)‖²): a product of two small
    numbers. Spectral features, which KE-DRL needs because they turn a shift into a rotation, have an error
    of order 1/√Q to 1/Q here. ``python -m tests.benchmarks.reference`` measures both, and the projection of
    spectral features on atoms; landmarks are the most accurate, at half the width.

    Examples
    --------
    >>> import numpy as np
    >>> from kedrl_dask import ConditionalEmbedding, Matern, TransitionStore
    >>> from kedrl_dask.reference import pair_rows
    >>> state, action = np.random.default_rng(0).normal(size=(2, 200, 1))
    >>> pairs = TransitionStore.from_arrays("pairs.zarr", **pair_rows(state, action, state + action))
    >>> kernel = Matern(length_scale=2.0)
    >>> model = ConditionalEmbedding(input_kernel=kernel, return_kernel=kernel, n_landmarks=40, n_features=40)
    >>> model = model.fit(pairs, progress="none")
    >>> model.embed([[0.5]], [[0.5]], at=[[1.0], [4.0]]).round(2)
    array([[1. , 0.3]])
    >>> model.mass([[0.5]], [[0.5]]).round(2)
    array([1.])
    """

    def __init__(
        self,
        *,
        input_kernel: Matern | Literal["auto"] = "auto",
        return_kernel: Matern | Literal["auto"] = "auto",
        n_landmarks: int = 500,
        n_features: int = 256,
        ridge: float | Literal["auto"] = "auto",
        precision: Literal["mixed", "double"] = "mixed",
        n_blocks: int = 40,
        landmark_threshold: float = 1e-7,
        random_state: int = 0,
    ) -> None:
        self.input_kernel = input_kernel
        self.return_kernel = return_kernel
        self.n_landmarks = n_landmarks
        self.n_features = n_features
        self.ridge = ridge
        self.precision = precision
        self.n_blocks = n_blocks
        self.landmark_threshold = landmark_threshold
        self.random_state = random_state

    def fit(
        self,
        pairs: TransitionStore | str | Path,
        *,
        executor: Executor | None = None,
        progress: Literal["auto", "bars", "log", "none"] = "auto",
    ) -> ConditionalEmbedding:
        """Estimate the embedding of the response given the input.

        Parameters
        ----------
        pairs : TransitionStore or path
            The response is the reward of each transition; :func:`pair_rows` makes rows of such a store from
            pairs. With a store of logged episodes, the law of the one-step reward is estimated.
        executor, progress
            As for :meth:`kedrl_dask.KEDRL.fit`.

        Returns
        -------
        self
        """
        settings = self._settings()
        store = pairs if isinstance(pairs, TransitionStore) else TransitionStore.open(pairs)
        settings.check_kernels(store.state_dim + store.action_dim, store.reward_dim)
        if self.ridge == "auto" and min(store.n_episodes, self.n_blocks) < 2:
            raise ValueError(
                "ConditionalEmbedding: ridge='auto' needs two blocks of pairs, to leave one out; "
                "give ridge a number"
            )
        executor, reporter = checked_executor(executor), Reporter(progress)
        with driver_blas_threads():
            with reporter.stage("design"):
                sample = store.sample(DESIGN_SAMPLE, np.random.default_rng([self.random_state, 1]))
                self._choose_features(sample)
            folds = self._sum_pairs(store, executor, reporter)
            with reporter.stage("regression"):
                self._regress(folds)
        self.diagnostics_: Record = {
            "data": store.fingerprint,
            "sizes": {
                "pairs": store.n_transitions,
                "state_dim": store.state_dim,
                "action_dim": store.action_dim,
                "response_dim": store.reward_dim,
                "rank": self.features_.rank,
                "response_rank": self.response_features_.rank,
            },
            "input_residual": self.features_.residual(sample.inputs),
            "response_residual": self.response_features_.residual(sample.reward),
            "tuning": self._tried,
            "seconds": dict(reporter.seconds),
        }
        return self

    def _settings(self) -> EmbeddingParameters:
        """Check the parameters."""
        return EmbeddingParameters(**self.get_params(deep=False))

    def _choose_features(self, sample: Transitions) -> None:
        """Kernels and landmarks, from a sample of the pairs."""
        seed = self.random_state
        self._tried: Record = {}
        input_kernel, return_kernel = self.input_kernel, self.return_kernel
        if not isinstance(input_kernel, Matern):
            tuned = tune_on(sample, seed, with_successors=False)
            input_kernel, self._tried["input_kernel"] = tuned.kernel, tuned.to_dict()
        if not isinstance(return_kernel, Matern):
            return_kernel = median_kernel(sample.reward, random_state=seed)
        self.input_kernel_, self.return_kernel_ = input_kernel, return_kernel
        self.features_, self.response_features_ = (
            NystromFeatures.from_landmarks(
                kernel, choose_points(points, size, kernel, random_state=seed), self.landmark_threshold
            )
            for kernel, points, size in (
                (input_kernel, sample.inputs, self.n_landmarks),
                (return_kernel, sample.reward, self.n_features),
            )
        )

    def _sum_pairs(self, store: TransitionStore, executor: Executor, reporter: Reporter) -> dict[str, Real]:
        """Sums over the pairs by folds, with ψ and ψ_Z, in one pass."""
        features, responses = self.features_, self.response_features_
        dtype = np.float32 if self.precision == "mixed" else np.float64
        blocks, specs = episode_blocks(store, self.n_blocks), (*INPUT_SUMS, *RESPONSE_SUMS)
        sizes = {"block": len(blocks), "rank": features.rank, "rank_again": features.rank}
        sizes["response_rank"] = responses.rank

        with workspace(store, None) as space, reporter.stage("streaming pass", len(blocks)) as advance:
            path = space.directory / "sums"
            create_sums(path, specs, sizes)
            names = tuple(spec.name for spec in specs)
            task = StreamingPass(
                store.source,
                features.astype(dtype),
                {block.number: (Destination(path, block.number, names),) for block in blocks},
                responses=responses.astype(dtype),
            )
            sum_blocks(task, blocks, executor, advance)
            folds = read_folds([StoredBlocks([(path, block.number) for block in blocks])], features)
        completed = responses.complete_sums(np.swapaxes(folds["response"], 1, 2))
        return {**folds, "response": np.swapaxes(completed, 1, 2)}

    def _regress(self, folds: dict[str, Real]) -> None:
        """Coefficients of ψ_Z and of the constant on ψ."""
        count = folds["count"]
        if isinstance(self.ridge, str):
            # ‖k_Z(z, ·)‖² = σ² for each response, of which ψ_Z sees nearly all.
            square = count * self.return_kernel_.sigma**2
            errors = cross_validate_ridge(BlockSums(folds["gram"], folds["response"], square, count))
            self.ridge_ = RIDGES[int(np.argmin(errors))]
            self._tried["ridge"] = {"ridges": list(RIDGES), "errors": errors.tolist()}
        else:
            self.ridge_ = float(self.ridge)
        responses = np.column_stack([folds["response"].sum(axis=0), folds["mass"].sum(axis=0)])
        solved = solve_ridge(folds["gram"].sum(axis=0), responses, float(count.sum()), self.ridge_)
        require_finite("the regression", "raise ridge, or give the pairs in other units", solved)
        self.coefficients_ = np.ascontiguousarray(solved[:, :-1])
        self.mass_coefficients_ = np.ascontiguousarray(solved[:, -1])

    def _inputs(self, state: npt.ArrayLike, action: npt.ArrayLike) -> Inputs:
        """Join states and actions, checked against the data of the fit."""
        check_is_fitted(self)
        sizes = self.diagnostics_["sizes"]
        return joined_inputs(state, action, sizes["state_dim"], sizes["action_dim"])

    def embed(self, state: npt.ArrayLike, action: npt.ArrayLike, at: npt.ArrayLike) -> Real:
        """Values μ̂(x)(z) of the embedding; (n, g). See :meth:`kedrl_dask.KEDRL.embed`."""
        inputs = self._inputs(state, action)
        at = checked_returns(at, len(inputs), self.response_features_.landmarks.shape[1])
        expected = by_rows(inputs, lambda x: self.features_(x) @ self.coefficients_)
        if at.ndim == 2:
            return expected @ self.response_features_(at).T
        values = [self.response_features_(z) @ e for e, z in zip(expected, at, strict=True)]
        return np.reshape(values, at.shape[:2])

    def mass(self, state: npt.ArrayLike, action: npt.ArrayLike) -> Vector:
        """Σ_j Γ_j(x) at each input, (n,): near one where there are data, towards zero far from them."""
        inputs = self._inputs(state, action)
        return by_rows(inputs, lambda x: self.features_(x) @ self.mass_coefficients_)

    def save(self, path: str | Path) -> None:
        """Write the fitted embedding as a Zarr store (no pickle) at a new path."""
        check_is_fitted(self)
        features, responses = self.features_, self.response_features_
        arrays = {
            "landmarks": features.landmarks,
            "whitening": features.whitening,
            "response_landmarks": responses.landmarks,
            "response_whitening": responses.whitening,
            "coefficients": self.coefficients_,
            "mass": self.mass_coefficients_,
        }
        attributes = {
            "parameters": persistence.parameters(self),
            "input_kernel": persistence.to_json(self.input_kernel_),
            "return_kernel": persistence.to_json(self.return_kernel_),
            "ridge": self.ridge_,
            "diagnostics": self.diagnostics_,
        }
        persistence.write_fitted(path, KIND, REFERENCE, arrays, attributes)

    @classmethod
    def load(cls, path: str | Path) -> ConditionalEmbedding:
        """Read an embedding written by :meth:`save`."""
        with persistence.opened_fitted(path, KIND, REFERENCE) as (arrays, attributes):
            return cls._assemble(arrays, attributes)

    @classmethod
    def _assemble(cls, arrays: dict[str, Array], attributes: Record) -> ConditionalEmbedding:
        read = arrays.__getitem__
        given = attributes["parameters"]
        model = cls(**{name: persistence.from_json(value) for name, value in given.items()})
        model._settings()
        model.input_kernel_ = persistence.kernel_from_json(attributes["input_kernel"])
        model.return_kernel_ = persistence.kernel_from_json(attributes["return_kernel"])
        model.features_ = NystromFeatures(model.input_kernel_, read("landmarks"), read("whitening"))
        model.response_features_ = NystromFeatures(
            model.return_kernel_, read("response_landmarks"), read("response_whitening")
        )
        model.coefficients_, model.mass_coefficients_ = read("coefficients"), read("mass")
        model.ridge_, model.diagnostics_ = attributes["ridge"], attributes["diagnostics"]
        check_number("ridge", model.ridge_, "a number ≥ 0")
        sizes = model.diagnostics_["sizes"]
        if sizes["state_dim"] + sizes["action_dim"] != model.features_.landmarks.shape[1]:
            raise ValueError(f"sizes {shown(sizes)} are not those of the arrays")
        return model

    def __sklearn_is_fitted__(self) -> bool:
        """Whether it was fitted."""
        return hasattr(self, "diagnostics_")
