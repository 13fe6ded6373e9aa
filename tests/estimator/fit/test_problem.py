"""Problems that are shrunk towards given coefficients."""

from __future__ import annotations

import numpy as np
import pytest

from kedrl_dask.engine.passes.separated_objective import Objective
from kedrl_dask.estimator.fit.problem import Around
from kedrl_dask.numerics.criterion.preconditioner import Coordinates
from kedrl_dask.numerics.criterion.separated import Penalties
from kedrl_dask.numerics.solvers import LBFGS, PCG

RIDGE = 0.3


class Quadratic(Objective):
    """‖AC − Y‖² + λ‖C‖²."""

    products_are_exact = True
    whitening = None
    n_points = 12

    def __init__(self):
        super().__init__(Penalties(0.0), RIDGE)
        rng = np.random.default_rng(0)
        self.a, self.y = rng.normal(size=(12, 4)), rng.normal(size=(12, 3))
        self.coordinates = Coordinates.build(self.a.T @ self.a, np.eye(3), RIDGE)

    def value_and_gradient(self, coefficients):
        left = self.a @ coefficients - self.y
        return self._with_ridge(float(np.vdot(left, left)), 2 * self.a.T @ left, coefficients)

    def product(self, direction):
        return 2 * self.a.T @ (self.a @ direction) + 2 * RIDGE * direction

    def batch_gradient(self, rows, coefficients):
        return self.value_and_gradient(coefficients)[1]


@pytest.mark.parametrize("solver", [PCG(), LBFGS()], ids=["pcg", "lbfgs"])
def test_around__minimises_the_criterion_with_the_ridge_on_the_distance(solver):
    problem, center = Quadratic(), np.random.default_rng(1).normal(size=(4, 3))
    found = solver.solve(Around(problem, center))
    gram, right = problem.a.T @ problem.a + RIDGE * np.eye(4), problem.a.T @ problem.y + RIDGE * center
    literal = np.linalg.solve(gram, right)
    np.testing.assert_allclose(center + found.coefficients, literal, atol=1e-6)
    left, moved = problem.a @ literal - problem.y, literal - center
    assert found.value == pytest.approx(np.vdot(left, left) + RIDGE * np.vdot(moved, moved))


def test_around__gradients_are_those_of_its_value():
    around = Around(Quadratic(), np.ones((4, 3)))
    rng = np.random.default_rng(2)
    at, direction = rng.normal(size=(2, 4, 3))
    gradient = around.value_and_gradient(at)[1]
    ahead, behind = (around.value_and_gradient(at + sign * 1e-5 * direction)[0] for sign in (1, -1))
    assert np.vdot(gradient, direction) == pytest.approx((ahead - behind) / 2e-5, rel=1e-6)
    np.testing.assert_array_equal(around.batch_gradient(np.arange(12), at), gradient)
